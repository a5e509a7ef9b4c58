"""Chimera: two pipelines over the same ranks in opposite directions, each filling the other's gaps.

Shigang Li, Torsten Hoefler: Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines,
arXiv 2107.06925, section 3.

p ranks, p even, every rank holds two stages: stage r of the pipeline down and stage p - 1 - r of the pipeline up, so
there are two copies of the model, whose gradients are added up at the end of the step. Microbatches come in units of p:
half of a unit goes down, half up (numbered in this order). With slots as long as a forward and as a backward,
microbatch i of a unit's half starts at slot 2 i and moves on a stage a slot, and its backward follows at once: ranks of
odd and even number, and the two directions, then never want the same slot. Units follow each other every 2 p slots.
Step (2 m + p - 2) slots, of which each rank works 2 m. In
flight p / 2 + 1 + min(r, p - 1 - r), at most p. p = 4, m = 4, microbatches 0 1 go down, 2 3 up:

    rank 0   0  1  .  2  2' 3  3' 0' .  1'
    rank 1   .  0  2  1  3  2' 0' 3' 1' .
    rank 2   .  2  0  3  1  0' 2' 1' 3' .
    rank 3   2  3  .  0  0' 1  1' 2' .  3'

Where a backward takes longer than a forward, gaps open between the units; the paper's remedies (doubled forwards,
halved backwards) are not built.
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes, even_beside

__all__ = ["ENTRY"]

_NAME = "chimera"


def _make(sizes: Sizes) -> Schedule:
    p, m = sizes.num_ranks, sizes.num_microbatches
    placement = Placement.bidirectional(p)
    timed: list[list[tuple[int, Compute]]] = [[] for _ in range(p)]
    for first in range(0, m, p):
        half = min(p, m - first) // 2
        for index in range(2 * half):
            microbatch = MicrobatchIndex(first + index)
            start = 2 * first + 2 * (index % half)
            for place, stage in enumerate(placement.streams[index // half]):
                rank = placement.rank_of(stage)
                timed[rank].append((start + place, Compute(stage, Kind.FORWARD, microbatch)))
                timed[rank].append((start + 2 * p - 1 - place, Compute(stage, Kind.BACKWARD, microbatch)))
    orders = tuple(tuple(action for _, action in sorted(row, key=lambda one: one[0])) for row in timed)
    return Schedule(_NAME, placement, m, orders)


def _check(sizes: Sizes) -> None:
    p, m = sizes.num_ranks, sizes.num_microbatches
    if p % 2:
        raise ScheduleError(f"{_NAME} needs an even number of ranks (num_ranks={p}); use {even_beside(p)}")
    if m % 2:
        raise ScheduleError(
            f"{_NAME} needs an even number of microbatches, as many down as up (num_microbatches={m}); "
            f"use {even_beside(m)}"
        )


def _peak(sizes: Sizes, rank: int) -> int:
    half = min(sizes.num_ranks, sizes.num_microbatches) // 2
    return min(half + 1 + min(rank, sizes.num_ranks - 1 - rank), 2 * half)


def _span(sizes: Sizes, share: StageCost) -> Fraction | None:
    """A last unit of fewer microbatches takes as long as a whole one, but for the last of it."""
    p, m = sizes.num_ranks, sizes.num_microbatches
    if share.forward != share.backward_input + share.backward_weight:
        return None
    units = -(-m // p)
    return Fraction(share.forward * (2 * p * units + m - p * (units - 1) - 2))


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="two pipelines in opposite directions fill each other's gaps; two copies of the model",
    paper="Li and Hoefler, Chimera: Efficiently Training Large-Scale Neural Networks, arXiv 2107.06925",
    constraints="an even number of ranks and of microbatches",
    construct=lambda sizes, _: _make(sizes),
    check=_check,
    place=lambda sizes: Placement.bidirectional(sizes.num_ranks),
    chunks=2,
    peak=_peak,
    span=_span,
)
