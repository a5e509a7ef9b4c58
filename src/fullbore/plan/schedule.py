"""The schedule a run configuration asks for, or why there is none."""

from __future__ import annotations

from fullbore.config.run import RunConfig, batch_sizes
from fullbore.errors import ConfigError
from fullbore.ir.recipe import Layout
from fullbore.ir.schedule import Schedule
from fullbore.schedules.registry import get

__all__ = ["layout_of", "schedule_of"]


def layout_of(config: RunConfig) -> Layout:
    """How many ranks each axis has. Raises RecipeError for an axis that is not built yet."""
    mesh = config.mesh
    return Layout(
        pipeline=config.pipeline.stages,
        chunks=config.pipeline.chunks,
        tensor=mesh.tensor,
        data=mesh.data,
        context=mesh.context,
        expert=mesh.expert,
    )


def schedule_of(config: RunConfig) -> Schedule:
    """Build it for the configured ranks, chunks and microbatches.

    Raises:
        ConfigError: the schedule has another number of stages per rank.
        ScheduleError: there is no such schedule, or not for these sizes.
    """
    pipeline = config.pipeline
    entry = get(pipeline.schedule)
    if pipeline.chunks != entry.chunks:
        raise ConfigError(
            f"schedule {entry.name!r} has {entry.chunks} stage(s) per rank (pipeline.chunks={pipeline.chunks}); "
            f"use pipeline.chunks={entry.chunks} or another schedule"
        )
    return entry.build(pipeline.stages, num_microbatches=batch_sizes(config).microbatches)
