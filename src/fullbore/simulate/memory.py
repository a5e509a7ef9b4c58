"""Memory: how many activations each rank keeps at once. It follows from the order alone; costs do not matter.

+1 at a forward, -1 at the end of the action that uses the activation last (a whole backward, or the weight half of a
split one). 1F1B, p = 4, m = 8: 4 3 2 1. A forward whose backward never comes (evaluation) keeps nothing.
"""

from __future__ import annotations

from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule

__all__ = ["peak_activations"]


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """Peak per rank, in activations of one (stage, microbatch): with v chunks, v of them are one share. Linear."""
    peaks = []
    for order in schedule.orders:
        freed = {(action.stage, action.microbatch) for action in order if action.kind.frees_activation}
        alive = peak = 0
        for action in order:
            if action.kind is Kind.FORWARD and (action.stage, action.microbatch) in freed:
                alive += 1
                peak = max(peak, alive)
            elif action.kind.frees_activation:
                alive -= 1
        peaks.append(peak)
    return tuple(peaks)
