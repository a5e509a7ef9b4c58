"""Memory: how many activations and how many bytes each rank keeps at once.

+1 at a forward, -1 at the end of the action that uses the activation last (a whole backward, or the weight half of a
split one, whose input half may free a part before). 1F1B, p = 4, m = 8: 4 3 2 1. A forward whose backward never comes
(evaluation) keeps nothing. A recomputation changes no count: its microbatch is kept already, if only as the inputs of
layers, and is so until its backward; in bytes, one microbatch's recomputed layers come on top in between.

How much is kept at most follows from the order alone; costs do not matter. When it is kept does, so `memory_curve`
takes a timeline. With several chunks a rank, their peaks may come at different moments: the peak of the sum is taken,
never the sum of the peaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fullbore.costs.memory import StageMemory
from fullbore.errors import CostsError
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.timeline.span import Row, Timeline

__all__ = ["MemoryPoint", "memory_curve", "peak_activations", "peak_bytes", "peak_shares"]


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """From this moment on, a rank keeps this much."""

    time_ns: int
    bytes: int


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """Peak per rank, in activations of one (stage, microbatch): with v chunks, v of them are one share. Linear."""
    peaks = []
    for order in schedule.orders:
        alive = peak = 0
        for _, change in _changes(order):
            alive += change
            peak = max(peak, alive)
        peaks.append(peak)
    return tuple(peaks)


def peak_shares(schedule: Schedule, *, input_backward_frees: Fraction = Fraction(0)) -> tuple[Fraction, ...]:
    """Peak per rank in microbatch-shares: 1 is one microbatch's activations on all of the rank's layers. Linear.

    Args:
        input_backward_frees: part of an activation that the backward for the input already frees.
    """
    streams, slices = schedule.placement.num_streams, schedule.num_slices
    whole, early = input_backward_frees.denominator, input_backward_frees.numerator
    peaks = []
    for rank, order in enumerate(schedule.orders):
        freed = {action.of_kind(Kind.FORWARD) for action in order if action.kind.frees_activation}
        kept = peak = 0
        for action in order:
            if action in freed:
                kept += whole
                peak = max(peak, kept)
            elif action.kind is Kind.BACKWARD:
                kept -= whole
            elif action.kind is Kind.BACKWARD_INPUT:
                kept -= early
            elif action.kind is Kind.BACKWARD_WEIGHT:
                kept -= whole - early
        parts = len(schedule.placement.stages_of(Rank(rank))) // streams * slices
        peaks.append(Fraction(peak, whole * parts))
    return tuple(peaks)


def peak_bytes(schedule: Schedule, *, stages: Sequence[StageMemory]) -> tuple[int, ...]:
    """Peak per rank: what its stages always hold, and the most their activations take at once. Linear."""
    _require_memory(stages, placement=schedule.placement)
    peaks = []
    for rank, order in enumerate(schedule.orders):
        alive = peak = sum(stages[stage].fixed_bytes for stage in schedule.placement.stages_of(Rank(rank)))
        for position, change in _changes(order):
            alive += change * stages[order[position].stage].activation_bytes
            peak = max(peak, alive)
        peaks.append(peak)
    return tuple(peaks)


def memory_curve(
    timeline: Timeline, *, placement: Placement, stages: Sequence[StageMemory]
) -> tuple[tuple[MemoryPoint, ...], ...]:
    """What each rank keeps over time: a step up where a forward starts, one down where the last use ends.

    Predicted and measured timelines alike. Each rank begins with its parameters and optimizer state at the first
    compute start. O(spans log spans), which is the sorting.

    Raises:
        CostsError: not one memory a stage.
    """
    _require_memory(stages, placement=placement)
    curves = []
    for rank in map(Rank, range(timeline.num_ranks)):
        spans = [(span, span.action) for span in timeline.on(rank, Row.COMPUTE) if span.action is not None]
        alive = sum(stages[stage].fixed_bytes for stage in placement.stages_of(rank))
        points = [MemoryPoint(timeline.compute_start_ns, alive)]
        for position, change in _changes([action for _, action in spans]):
            span, action = spans[position]
            alive += change * stages[action.stage].activation_bytes
            points.append(MemoryPoint(span.start_ns if change > 0 else span.end_ns, alive))
        curves.append(tuple(points))
    return tuple(curves)


def _changes(order: Sequence[Compute]) -> Iterator[tuple[int, int]]:
    """(position, +1 or -1) of every activation that is kept and of its last use, in the order of the rank."""
    freed = {action.of_kind(Kind.FORWARD) for action in order if action.kind.frees_activation}
    for position, action in enumerate(order):
        if action.kind.frees_activation:
            yield position, -1
        elif action in freed:
            yield position, 1


def _require_memory(stages: Sequence[StageMemory], *, placement: Placement) -> None:
    if len(stages) != placement.num_stages:
        raise CostsError(f"memory needs one entry for each of the {placement.num_stages} stages (given {len(stages)})")
