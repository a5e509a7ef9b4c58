"""How many microbatches' activations each stage keeps at once, which is what its memory grows with."""

from __future__ import annotations

from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule

__all__ = ["in_flight"]


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The peak of every stage, in stage order: 1F1B with p = 4 and m = 8 keeps 4 3 2 1. Linear."""
    alive, peak = [0] * schedule.num_stages, [0] * schedule.num_stages
    for order in schedule.orders:
        for action in order:
            if action.kind is Kind.FORWARD:
                alive[action.stage] += 1
                peak[action.stage] = max(peak[action.stage], alive[action.stage])
            elif action.kind.frees_activation:
                alive[action.stage] -= 1
    return tuple(peak)
