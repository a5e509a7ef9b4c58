"""The schedule a run configuration asks for, or why there is none. Absent chunks become a number here and only here."""

from __future__ import annotations

from fullbore.config.run import RunConfig, batch_sizes
from fullbore.errors import ConfigError, ScheduleError
from fullbore.ir.recipe import Layout
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.synthesis.catalogue import CATALOGUE, get

__all__ = ["layout_of", "schedule_of"]


def schedule_of(config: RunConfig) -> Schedule:
    """Build it for the configured ranks, chunks, options and microbatches.

    Raises:
        ConfigError: a list of layers a stage that is not as long as the schedule has stages.
        ScheduleError: there is no such schedule, or not for these sizes.
    """
    entry, sizes = _resolved(config)
    given = config.pipeline.partition
    if isinstance(given, tuple) and len(given) != sizes.num_stages:
        raise ConfigError(
            f"pipeline.partition needs a number of layers for each of the {sizes.num_stages} stages of {entry.name} "
            f"({len(given)} given: {list(given)}; stages={sizes.num_ranks}, chunks={sizes.num_chunks}); "
            f'give {sizes.num_stages} numbers, or a word such as "equal"'
        )
    return entry.make(sizes)


def layout_of(config: RunConfig) -> Layout:
    """The layout with the schedule's stages per rank.

    Raises:
        ScheduleError: there is no such schedule, or not for these sizes.
        RecipeError: an axis that is not built yet.
    """
    _, sizes = _resolved(config)
    mesh = config.mesh
    return Layout(sizes.num_ranks, sizes.num_chunks, mesh.tensor, mesh.data, mesh.context, mesh.expert)


def _resolved(config: RunConfig) -> tuple[ScheduleEntry, Sizes]:
    pipeline = config.pipeline
    entry = get(pipeline.schedule)
    microbatches = batch_sizes(config).microbatches
    if not entry.runnable:
        known = ", ".join(name for name, one in CATALOGUE.items() if one.runnable)
        raise ScheduleError(f"{entry.name} is drawn and simulated, and cannot be run; use one of: {known}")
    sizes = entry.sizes(
        pipeline.stages, num_microbatches=microbatches, num_chunks=pipeline.chunks, options=pipeline.options
    )
    return entry, sizes
