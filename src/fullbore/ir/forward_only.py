"""Forward-only: the order of evaluation, for any placement. No backward, nothing kept.

Each rank takes the microbatches one after the other, and of each the forwards of its stages in model order. All ranks
follow the order (microbatch, stage), so no circle of waits can arise, whatever the placement. p = 3:

    rank 0   0  1  2  3  .  .
    rank 1   .  0  1  2  3  .
    rank 2   .  .  0  1  2  3
"""

from __future__ import annotations

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, Rank
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule

__all__ = ["forward_only"]


def forward_only(placement: Placement, *, num_microbatches: int) -> Schedule:
    """The schedule above: (m + p - 1) forward slots on a linear placement."""
    if num_microbatches < 1:
        raise ScheduleError(f"num_microbatches must be at least 1 (num_microbatches={num_microbatches})")
    orders = tuple(
        tuple(
            Compute(stage, Kind.FORWARD, MicrobatchIndex(index))
            for index in range(num_microbatches)
            for stage in placement.stages_of(Rank(rank))
        )
        for rank in range(placement.num_ranks)
    )
    return Schedule("forward-only", placement, num_microbatches, orders)
