"""The schedule a run configuration asks for, or why there is none. Absent chunks become a number here and only here,
and pairs of actions that might run at once come apart, as a rank runs one after the other.

A name is built for the configured sizes. What depends on costs (`ScheduleEntry.cost_driven`, as ``auto``) is made for
equal stages first, so that layers can be cut, and then for the stages of the cut. A file is taken as it is.
Recomputations ahead of the backward are put in later: which stages have them depends on the cut
(`fullbore.plan.resolve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from fullbore.config.run import RunConfig, batch_sizes
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import ConfigError, ScheduleError
from fullbore.ir.action import Kind
from fullbore.ir.explicit import ExplicitSchedule
from fullbore.ir.placement import Placement
from fullbore.ir.recipe import Layout
from fullbore.ir.runnable import require_runnable
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import read_schedule_file
from fullbore.ir.validate import validate
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.memory import peak_shares
from fullbore.synthesis.auto import cap_of_a_run
from fullbore.synthesis.catalogue import CATALOGUE, get

__all__ = ["follows_costs", "layout_of", "placement_of", "schedule_for_stages", "schedule_of"]


def schedule_of(config: RunConfig) -> Schedule:
    """Build it for the configured ranks, chunks, options and microbatches, and equal stages.

    Raises:
        ConfigError: a list of layers a stage that is not as long as the schedule has stages.
        ScheduleError: there is no such schedule, not for these sizes, or it keeps more than ``pipeline.memory_cap``.
    """
    asked = _asked(config)
    given, placement = config.pipeline.partition, asked.placement
    wanted = placement.stages_per_stream
    if isinstance(given, tuple) and len(given) != wanted:
        ranks, direction = config.pipeline.stages, "" if placement.num_streams == 1 else " in one direction"
        raise ConfigError(
            f"pipeline.partition needs a number of layers for each of the {wanted} stages of {asked.name}{direction} "
            f"({len(given)} given: {list(given)}; stages={ranks}, chunks={placement.num_stages // ranks}); "
            f'give {wanted} numbers, or a word such as "equal"'
        )
    return _within_cap(asked.make(config, stages=(), links=(), message_bytes=()).in_turn(), config)


def schedule_for_stages(
    config: RunConfig, *, stages: Sequence[StageCost], links: Sequence[Link], message_bytes: Sequence[int]
) -> Schedule:
    """The same, made for these stage times where it depends on them. Raises as `schedule_of`."""
    made = _asked(config).make(config, stages=stages, links=links, message_bytes=message_bytes)
    return _within_cap(made.in_turn(), config)


def follows_costs(config: RunConfig) -> bool:
    """Does the order depend on what the stages take?"""
    asked = _asked(config)
    return isinstance(asked, _Named) and asked.entry.cost_driven


def placement_of(config: RunConfig) -> Placement:
    """Where its stages are. Raises `ScheduleError`: there is no such schedule, or not for these sizes."""
    return _asked(config).placement


def layout_of(config: RunConfig) -> Layout:
    """The layout with the schedule's stages per rank.

    Raises:
        ScheduleError: there is no such schedule, or not for these sizes.
        RecipeError: an axis that is not built yet.
    """
    ranks, mesh, placement = config.pipeline.stages, config.mesh, placement_of(config)
    return Layout(
        ranks,
        placement.num_stages // ranks,
        mesh.tensor,
        mesh.data,
        mesh.context,
        mesh.expert,
        placement.num_streams,
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """A registered schedule at the configured sizes."""

    entry: ScheduleEntry
    sizes: Sizes

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def placement(self) -> Placement:
        return self.entry.place(self.sizes)

    def make(
        self,
        config: RunConfig,
        *,
        stages: Sequence[StageCost],
        links: Sequence[Link],
        message_bytes: Sequence[int],
    ) -> Schedule:
        if not self.entry.cost_driven:
            return self.entry.make(self.sizes)
        given = config.pipeline.memory_cap
        cap = cap_of_a_run(self.entry, self.sizes) if given is None else Fraction(given)
        costs = ScheduleCosts.of(
            self.placement,
            stages=stages,
            links=links,
            message_bytes=message_bytes or 0,
            memory_cap=cap,
        )
        return self.entry.make(self.sizes, costs)


@dataclass(frozen=True, slots=True)
class _Filed:
    """What a file says."""

    schedule: Schedule

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def placement(self) -> Placement:
        return self.schedule.placement

    def make(
        self,
        config: RunConfig,
        *,
        stages: Sequence[StageCost],
        links: Sequence[Link],
        message_bytes: Sequence[int],
    ) -> Schedule:
        del config, stages, links, message_bytes
        return self.schedule


def _asked(config: RunConfig) -> _Named | _Filed:
    pipeline = config.pipeline
    path = Path(pipeline.schedule)
    if pipeline.schedule not in CATALOGUE and (path.suffix or len(path.parts) > 1):
        return _Filed(_read(path, config))
    entry = get(pipeline.schedule)
    microbatches = batch_sizes(config).microbatches
    if not entry.runnable:
        known = ", ".join(name for name, one in CATALOGUE.items() if one.runnable)
        raise ScheduleError(f"{entry.name} is drawn and simulated, and cannot be run; use one of: {known}")
    sizes = entry.sizes(
        pipeline.stages, num_microbatches=microbatches, num_chunks=pipeline.chunks, options=pipeline.options
    )
    return _Named(entry, sizes)


def _read(path: Path, config: RunConfig) -> Schedule:
    """The computing part of a schedule file; where messages go, lowering decides."""
    pipeline = config.pipeline
    if pipeline.options:
        raise ScheduleError(f"{path} is a file and takes no options (given {pipeline.options}); leave them out")
    found = read_schedule_file(path)
    schedule = found.compute_part() if isinstance(found, ExplicitSchedule) else found
    validate(schedule)
    require_runnable(schedule)
    again = sum(action.kind is Kind.RECOMPUTE for order in schedule.orders for action in order)
    if again and pipeline.recompute in ("none", ()):
        raise ScheduleError(
            f'{path} has recomputations (R) and pipeline.recompute names no layer; set it to "full" or a list of layer '
            "names, or leave out the Rs"
        )
    backwards = sum(action.kind.makes_input_gradient for order in schedule.orders for action in order)
    if again not in (0, backwards):
        raise ScheduleError(
            f"{path} has {again} recomputations (R) for {backwards} backwards; to be predicted, a schedule has one "
            "before each backward, or none"
        )
    for key, given, its in (
        ("stages", pipeline.stages, schedule.num_ranks),
        ("chunks", pipeline.chunks, schedule.num_stages // schedule.num_ranks),
        ("microbatches", batch_sizes(config).microbatches, schedule.num_microbatches),
    ):
        if given is not None and given != its:
            raise ScheduleError(f"{path} has {its} {key} and pipeline.{key} is {given}; set pipeline.{key}={its}")
    return schedule


def _within_cap(schedule: Schedule, config: RunConfig) -> Schedule:
    cap = config.pipeline.memory_cap
    if cap is not None and max(kept := peak_shares(schedule)) > cap:
        raise ScheduleError(
            f"{schedule.name} keeps the activations of {float(max(kept)):g} microbatches on rank "
            f"{kept.index(max(kept))}, above pipeline.memory_cap={cap:g}; raise it, or use another schedule"
        )
    return schedule
