"""Looped breadth-first: every rank holds v stages and runs all microbatches through one before it turns to the next.

Joel Lamy-Poirier: Breadth-First Pipeline Parallelism, arXiv 2211.05953.

p ranks, v chunks, m microbatches, T = F + B of a rank's whole share. Stage s on rank s mod p. Every rank: for chunk 0
to v - 1 the forwards of all microbatches, then for chunk v - 1 to 0 the backwards of all. One visit to each chunk in
each direction, so weights that are sharded over data ranks are gathered once a visit, and their gradients are reduced
once, as soon as the chunk's backwards are over. Step (m + (p - 1) / v) T where m >= p, in general
((v - 1) max(m, p) + m + p - 1) T / v; in flight m shares on every rank, as GPipe. p = 2, v = 2, m = 3, B as long as F;
chunk 0 has digits, chunk 1 letters (a = microbatch 0), a prime marks a backward:

    rank 0   0  1  2  a  b  c  .  .  a' b' c' 0' 1' 2'
    rank 1   .  0  1  2  a  b  c  a' b' c' 0' 1' 2' .

Backwards run in the order of the forwards. With one chunk this is GPipe.
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]


def _make(sizes: Sizes) -> Schedule:
    p, v, m = sizes.num_ranks, sizes.num_chunks, sizes.num_microbatches
    visits = [(Kind.FORWARD, chunk) for chunk in range(v)] + [(Kind.BACKWARD, chunk) for chunk in reversed(range(v))]
    orders = tuple(
        tuple(
            Compute(StageIndex(chunk * p + rank), kind, MicrobatchIndex(index))
            for kind, chunk in visits
            for index in range(m)
        )
        for rank in range(p)
    )
    return Schedule("looped-bfs", Placement.loop(p, num_chunks=v), m, orders)


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return sizes.num_microbatches * sizes.num_chunks


def _span(sizes: Sizes, share: StageCost) -> Fraction:
    """With fewer microbatches than ranks, a chunk waits until its first microbatch has come round."""
    p, v, m = sizes.num_ranks, sizes.num_chunks, sizes.num_microbatches
    return Fraction(share.total * ((v - 1) * max(m, p) + m + p - 1), v)


ENTRY = ScheduleEntry(
    name="looped-bfs",
    summary="all microbatches through one stage of a rank, then the next; few weight gathers, GPipe's memory",
    paper="Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953",
    constraints="any number of ranks, microbatches and stages per rank",
    construct=lambda sizes, _: _make(sizes),
    chunks=2,
    takes_chunks=True,
    peak=_peak,
    span=_span,
)
