"""Random schedules: every registered one at random sizes, and valid ones over any placement that nobody published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hypothesis import assume
from hypothesis import strategies as st

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.registry import REGISTRY
from fullbore.schedules.sizes import Sizes

MOST_RANKS, MOST_MICROBATCHES, MOST_CHUNKS = 8, 24, 4
times = st.integers(0, 50)
stage_cost = st.builds(StageCost, times, times, times)


@dataclass(frozen=True, slots=True)
class Published:
    """A registered schedule at sizes for which it exists."""

    entry: ScheduleEntry
    sizes: Sizes

    @property
    def schedule(self) -> Schedule:
        return self.entry.make(self.sizes)


def fits(
    entry: ScheduleEntry, num_ranks: int, num_microbatches: int, num_chunks: int | None, options: dict[str, int]
) -> bool:
    try:
        entry.sizes(num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, options=options)
    except ScheduleError:
        return False
    return True


@st.composite
def published(draw: st.DrawFn, name: str | None = None) -> Published:
    """A registered schedule, any or the one of this name, with any chunks, options and sizes that it takes."""
    entry = REGISTRY[draw(st.sampled_from(list(REGISTRY))) if name is None else name]
    chunks = draw(st.integers(1, MOST_CHUNKS)) if entry.takes_chunks else None
    options = {
        option.name: draw(st.just(option.default) | st.integers(option.least, option.least + MOST_RANKS))
        for option in entry.options
    }
    ranks = draw(st.integers(1, MOST_RANKS))
    counts = [m for m in range(1, MOST_MICROBATCHES + 1) if fits(entry, ranks, m, chunks, options)]
    assume(counts)
    microbatches = draw(st.sampled_from(counts))
    return Published(entry, entry.sizes(ranks, num_microbatches=microbatches, num_chunks=chunks, options=options))


def registered() -> st.SearchStrategy[Schedule]:
    """Its schedule alone."""
    return published().map(lambda case: case.schedule)


@st.composite
def unpublished(draw: st.DrawFn) -> Schedule:
    """A valid schedule in random order: linear, loop or snake, whole or split backwards."""
    place: Callable[..., Placement] = draw(st.sampled_from([Placement.loop, Placement.snake]))
    placement = place(draw(st.integers(1, 4)), num_chunks=draw(st.integers(1, 3)))
    split = draw(st.booleans())
    return shuffled(placement, num_microbatches=draw(st.integers(1, 5)), split=split, seed=draw(st.integers(0, 10**6)))


def shuffled(placement: Placement, *, num_microbatches: int, split: bool, seed: int) -> Schedule:
    """Take any action that has its data, until none is left: every valid order can come out."""
    random = Random(seed)
    last = placement.num_stages - 1
    backward = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
    open_actions = [Compute(StageIndex(0), Kind.FORWARD, MicrobatchIndex(mb)) for mb in range(num_microbatches)]
    orders: list[list[Compute]] = [[] for _ in range(placement.num_ranks)]
    while open_actions:
        action = open_actions.pop(random.randrange(len(open_actions)))
        orders[placement.rank_of(action.stage)].append(action)
        stage, mb = action.stage, action.microbatch
        if action.kind is Kind.FORWARD:
            forward = stage < last
            following = (StageIndex(stage + 1), Kind.FORWARD) if forward else (stage, backward)
            open_actions.append(Compute(*following, mb))
        elif action.kind is backward:
            if stage > 0:
                open_actions.append(Compute(StageIndex(stage - 1), backward, mb))
            if split:
                open_actions.append(Compute(stage, Kind.BACKWARD_WEIGHT, mb))
    return Schedule("shuffled", placement, num_microbatches, tuple(map(tuple, orders)))


schedules = registered() | unpublished()


@st.composite
def costed(draw: st.DrawFn) -> tuple[Schedule, list[StageCost], list[Link]]:
    """A schedule with a cost for each stage and a link for each boundary."""
    schedule = draw(schedules)
    costs = draw(st.lists(stage_cost, min_size=schedule.num_stages, max_size=schedule.num_stages))
    delays = draw(st.lists(times, min_size=schedule.num_stages - 1, max_size=schedule.num_stages - 1))
    return schedule, costs, [Link(latency_ns=delay) for delay in delays]
