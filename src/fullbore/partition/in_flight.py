"""How many microbatches' activations each stage keeps at once, which is what its memory grows with."""

from __future__ import annotations

from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule

__all__ = ["in_flight"]


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The peak of every stage, in the order of a stream: 1F1B with p = 4 and m = 8 keeps 4 3 2 1. Where two streams
    hold the same layers, of the copy that keeps more. Linear."""
    alive, peak = [0] * schedule.num_stages, [0] * schedule.num_stages
    for order in schedule.orders:
        for action in order:
            if action.kind is Kind.FORWARD:
                alive[action.stage] += 1
                peak[action.stage] = max(peak[action.stage], alive[action.stage])
            elif action.kind.frees_activation:
                alive[action.stage] -= 1
    placement = schedule.placement
    return tuple(
        max(peak[stream[place]] for stream in placement.streams) for place in range(placement.stages_per_stream)
    )
