"""Held: how many bytes each rank is to keep at once between the two halves of split backwards.

What a weight gradient is made of, + at the end of I, - at the end of W. It follows from the order alone. An activation
is kept until W too (`fullbore.simulate.memory`); this is the part of it, and of the gradients that have come by, that
the second half still needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule

__all__ = ["peak_held_bytes"]


def peak_held_bytes(schedule: Schedule, *, held: Mapping[StageIndex, int]) -> tuple[int, ...]:
    """Peak per rank. Linear.

    Args:
        held: bytes that one microbatch of each stage keeps from its I to its W.
    """
    peaks = []
    for order in schedule.orders:
        now = peak = 0
        for action in order:
            if action.kind is Kind.BACKWARD_INPUT:
                now += held[action.stage]
                peak = max(peak, now)
            elif action.kind is Kind.BACKWARD_WEIGHT:
                now -= held[action.stage]
        peaks.append(peak)
    return tuple(peaks)
