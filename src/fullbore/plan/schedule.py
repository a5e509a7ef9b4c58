"""The schedule a run configuration asks for, or why there is none. Absent chunks become a number here and only here,
and pairs of actions that might run at once come apart, as a rank runs one after the other.

A name is built for the configured sizes. What depends on costs (`ScheduleEntry.cost_driven`, as ``auto``) is made for
equal stages first, so that layers can be cut, and then for the stages of the cut. A file is taken as it is.
Recomputations ahead of the backward are put in later: which stages have them depends on the cut
(`fullbore.plan.resolve`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fullbore.config.run import MeshConfig, RunConfig, batch_sizes
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import ConfigError, PartitionError, ScheduleError
from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.ir.recipe import Layout
from fullbore.ir.runnable import require_runnable
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import read_computed
from fullbore.ir.validate import validate
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.recompute_ahead import without_recomputations
from fullbore.shown import shown
from fullbore.simulate.memory import peak_shares
from fullbore.synthesis.auto import cap_of_a_run
from fullbore.synthesis.catalogue import CATALOGUE, get, require_can_run

__all__ = ["AskedSchedule", "asked_schedule", "drawn_schedule", "is_file", "is_same"]

_KEYS = MappingProxyType({size: f"pipeline.{size}=" for size in ("stages", "chunks", "microbatches")})
"""How a run file sets a size, in front of its number. Who has no run file passes other words."""


@dataclass(frozen=True, slots=True)
class AskedSchedule:
    """A schedule at the sizes of a run. Its stages are known; its order is made for what they take."""

    name: str
    placement: Placement
    memory_cap: Fraction | None
    """Most shares of memory a rank may keep; None: what the schedule keeps by itself."""

    follows_costs: bool
    """Does the order depend on what the stages take?"""

    takes_chunks: bool
    """May there be another number of stages a rank?"""

    construct: Callable[[ScheduleCosts], Schedule]

    def make(
        self, *, stages: Sequence[StageCost] = (), links: Sequence[Link] = (), message_bytes: Sequence[int] = ()
    ) -> Schedule:
        """The order, for these stages where it depends on them; none: equal stages and free links.

        Raises:
            ScheduleError: it keeps more than the cap, or nothing fits under it.
        """
        costs = ScheduleCosts.of(
            self.placement,
            stages=stages,
            links=links,
            message_bytes=message_bytes or 0,
            memory_cap=self.memory_cap,
        )
        made = self.construct(costs).in_turn()
        if self.memory_cap is not None and max(kept := peak_shares(made)) > self.memory_cap:
            raise ScheduleError(
                f"{self.name} keeps the activations of {float(max(kept)):g} microbatches on rank "
                f"{kept.index(max(kept))}, above the run's pipeline.memory_cap={float(self.memory_cap):g}; take "
                "another schedule, fewer microbatches, or a run with a higher cap"
            )
        return made

    def require_layers(self, num_layers: int, *, words: Mapping[str, str] = _KEYS) -> None:
        """Raises `PartitionError` where a stage would have none; says how many stages are the most.

        Args:
            words: as of `drawn_schedule`.
        """
        num_stages, ranks = self.placement.stages_per_stream, self.placement.num_ranks
        if num_layers >= num_stages:
            return
        chunks = num_stages // ranks
        most = [f"{words['stages']}{num_layers // chunks}"] if num_layers >= chunks else []
        if chunks > 1 and self.takes_chunks and num_layers >= ranks:
            most.append(f"{words['chunks']}{num_layers // ranks}")
        raise PartitionError(
            f"every stage holds at least one layer (embed and head count as one each), and {num_stages} stages are too "
            f"many for {num_layers} layers ({words['stages']}{ranks}, {words['chunks']}{chunks}); use at most "
            f"{' or '.join(most) or f'{num_layers} stages'}"
        )

    def layout(self, mesh: MeshConfig) -> Layout:
        """The layout with the schedule's stages per rank. Raises `RecipeError` for an axis that is not built yet."""
        placement = self.placement
        return Layout(
            placement.num_ranks,
            placement.num_stages // placement.num_ranks,
            mesh.tensor,
            mesh.data,
            mesh.context,
            mesh.expert,
            placement.num_streams,
        )


def asked_schedule(config: RunConfig) -> AskedSchedule:
    """Look it up, or read its file, once: who asks passes the answer on.

    Raises:
        ConfigError: a list of layers a stage that is not as long as the schedule has stages.
        InvalidSchedule: the file breaks a rule.
        ScheduleError: there is no such schedule, or not for these sizes.
    """
    if config.pipeline.schedule in CATALOGUE:
        require_can_run(CATALOGUE[config.pipeline.schedule])
    return drawn_schedule(config)


def drawn_schedule(config: RunConfig, *, words: Mapping[str, str] = _KEYS) -> AskedSchedule:
    """The same, and also what is drawn and simulated only.

    Args:
        words: for messages, how who asks gives ``stages``, ``chunks`` and ``microbatches``, in front of the number.

    Raises:
        As `asked_schedule`.
    """
    filed = is_file(config.pipeline.schedule)
    asked = _filed(config, words=words) if filed else _named(config)
    given, placement = config.pipeline.partition, asked.placement
    wanted = placement.stages_per_stream
    if isinstance(given, tuple) and len(given) != wanted:
        ranks, direction = config.pipeline.stages, "" if placement.num_streams == 1 else " in one direction"
        raise ConfigError(
            f"pipeline.partition needs a number of layers for each of the {wanted} stages of {asked.name}{direction} "
            f"({len(given)} given: {shown(str(list(given)))}; stages={ranks}, chunks={placement.num_stages // ranks}); "
            f'give {wanted} numbers, or a word such as "equal"'
        )
    return asked


def is_file(schedule: str) -> bool:
    """Is it the name of a file rather than of a schedule? It has a suffix, or a folder, as ``./order`` has."""
    return schedule not in CATALOGUE and (bool(Path(schedule).suffix) or os.sep in schedule)


def is_same(one: str, other: str) -> bool:
    """Do both name one schedule, or one file, however it is spelled?"""
    if one == other:
        return True
    return is_file(one) and is_file(other) and os.path.realpath(one) == os.path.realpath(other)


def _named(config: RunConfig) -> AskedSchedule:
    """A registered schedule at the configured sizes."""
    pipeline = config.pipeline
    entry = get(pipeline.schedule)
    sizes = entry.sizes(
        pipeline.stages,
        num_microbatches=batch_sizes(config).microbatches,
        num_chunks=pipeline.chunks,
        options=pipeline.options,
    )
    return AskedSchedule(
        name=entry.name,
        placement=entry.place(sizes),
        memory_cap=_cap(config) or cap_of_a_run(entry, sizes),
        follows_costs=entry.cost_driven,
        takes_chunks=entry.takes_chunks,
        construct=partial(entry.make, sizes),
    )


def _filed(config: RunConfig, *, words: Mapping[str, str]) -> AskedSchedule:
    """What a file says, action by action."""
    schedule = _read(Path(config.pipeline.schedule), config, words=words)

    def as_it_is(costs: ScheduleCosts) -> Schedule:
        del costs
        return schedule

    return AskedSchedule(
        name=schedule.name,
        placement=schedule.placement,
        memory_cap=_cap(config),
        follows_costs=False,
        takes_chunks=False,
        construct=as_it_is,
    )


def _cap(config: RunConfig) -> Fraction | None:
    given = config.pipeline.memory_cap
    return None if given is None else Fraction(given)


def _read(path: Path, config: RunConfig, *, words: Mapping[str, str]) -> Schedule:
    """What a schedule file says, if it is for this run."""
    pipeline = config.pipeline
    if pipeline.options:
        raise ScheduleError(f"{path} is a file and takes no options (given {pipeline.options}); leave them out")
    schedule = read_computed(path)
    validate(schedule)
    require_runnable(schedule)
    again = sum(action.kind is Kind.RECOMPUTE for order in schedule.orders for action in order)
    if again and pipeline.recompute in ("none", ()):
        raise ScheduleError(
            f"{path} has recomputations (R), and no layer of the run recomputes; leave out the Rs, or take a run whose "
            'pipeline.recompute is "full" or a list of layer names'
        )
    backwards = sum(action.kind.makes_input_gradient for order in schedule.orders for action in order)
    if again not in (0, backwards):
        if not pipeline.recompute_ahead:
            raise ScheduleError(
                f"{path} has {again} recomputations (R) for {backwards} backwards; to be predicted, a schedule has one "
                "before each backward, or none; take such a file, or a run with pipeline.recompute_ahead=true, which "
                "sets them anew"
            )
        schedule = without_recomputations(schedule)
    for key, given, its in (
        ("stages", pipeline.stages, schedule.num_ranks),
        ("chunks", pipeline.chunks, schedule.num_stages // schedule.num_ranks),
        ("microbatches", batch_sizes(config).microbatches, schedule.num_microbatches),
    ):
        if given is not None and given != its:
            raise ScheduleError(
                f"{path} has {its} {key}; give {words[key]}{its} instead of {words[key]}{given}, or take another file"
            )
    return schedule
