"""Timetables as text: one column a tick, the action's microbatch, with a prime for a backward and ``w`` for a W."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.timeline.span import Row, Timeline

_MARKS = {
    Kind.FORWARD: "",
    Kind.BACKWARD: "'",
    Kind.BACKWARD_INPUT: "'",
    Kind.BACKWARD_WEIGHT: "w",
    Kind.RECOMPUTE: "r",
}


_NUMBERS = tuple(map(str, range(26)))
_ALPHABETS = (_NUMBERS, tuple("abcdefghijklmnopqrstuvwxyz"), tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), tuple("xyz"))


def timetable(timeline: Timeline) -> list[str]:
    """One line a rank; a cell is repeated for every tick that its action takes."""
    return _lines(timeline, lambda rank, action: str(action.microbatch))


def timetable_of_chunks(timeline: Timeline) -> list[str]:
    """The same for ranks with several stages: microbatches 0 1 2 of the first are a b c of the second, A B C of the
    third."""
    stages = [
        sorted({span.action.stage for span in timeline.on(rank, Row.COMPUTE) if span.action is not None})
        for rank in range(timeline.num_ranks)
    ]
    return _lines(timeline, lambda rank, action: _ALPHABETS[stages[rank].index(action.stage)][action.microbatch])


def timetable_of_slices(timeline: Timeline) -> list[str]:
    """The same for cut sequences: slices 0 1 2 of the first microbatch are a b c of the second, A B C of the third."""
    return _lines(timeline, lambda rank, action: _ALPHABETS[action.microbatch][action.slice_index or 0])


def _lines(timeline: Timeline, name: Callable[[int, Compute], str]) -> list[str]:
    lines = []
    for rank in range(timeline.num_ranks):
        cells = ["."] * timeline.compute_end_ns
        for span in timeline.on(rank, Row.COMPUTE):
            assert span.action is not None
            for tick in range(span.start_ns, span.end_ns):
                cells[tick] = f"{name(rank, span.action)}{_MARKS[span.action.kind]}"
        lines.append(" ".join(cells))
    return lines


def rows(text: str) -> list[str]:
    """The same, from a drawing: words of every line that is not empty."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def equal_costs(
    num_stages: int, *, forward: int = 1, backward_input: int = 1, backward_weight: int = 0
) -> list[StageCost]:
    """The same cost for every stage."""
    return [StageCost(forward, backward_input, backward_weight)] * num_stages


def schedule_of(ranks: Iterable[int], orders: Iterable[str], *, num_microbatches: int, name: str = "test") -> Schedule:
    """A schedule from words: ``schedule_of([0, 1], ["0F0 0B0", "1F0 1B0"], num_microbatches=1)``."""
    return Schedule(
        name,
        Placement(tuple(map(Rank, ranks))),
        num_microbatches,
        tuple(tuple(map(Compute.parse, order.split())) for order in orders),
    )
