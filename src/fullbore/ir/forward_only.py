"""Forward-only: the order of evaluation, for any placement. No backward, nothing kept.

Microbatches go in groups of p. Each rank takes a group through its first stage, then through its next, as an
interleaved schedule does, so that a group comes round to a rank's next stage just when the rank is through with it.
All ranks follow the order (group, stage, microbatch), so no cycle of waits can arise, whatever the placement. Where
it has two streams, microbatches take them in turn.

    p = 3                        p = 2, two stages a rank in a loop; letters are the second stage

    rank 0   0  1  2  3  .  .    rank 0   0  1  a  b  2  3  c  d  .
    rank 1   .  0  1  2  3  .    rank 1   .  0  1  a  b  2  3  c  d
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
    """The schedule above: on a loop of v stages a rank, (v m + p - 1) forwards of a stage long where p divides m."""
    if num_microbatches < 1:
        raise ScheduleError(f"num_microbatches must be at least 1 (num_microbatches={num_microbatches})")
    size, streams = placement.num_ranks, placement.streams
    orders = tuple(
        tuple(
            Compute(stage, Kind.FORWARD, MicrobatchIndex(index))
            for first in range(0, num_microbatches, size)
            for stage in placement.stages_of(Rank(rank))
            for index in range(first, min(first + size, num_microbatches))
            if stage in streams[index % len(streams)]
        )
        for rank in range(placement.num_ranks)
    )
    return Schedule("forward-only", placement, num_microbatches, orders)
