"""Hanayo: waves over the ranks. What Chimera does with two copies of the model, with one.

Ziming Liu, Shenggan Cheng, Haotian Zhou, Yang You: Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large
Model Training Efficiency, arXiv 2308.15762, section 3.

p ranks, W waves, v = 2 W stages a rank: the model runs down the ranks and up again, W times. Microbatches come in units
of p. With slots as long as a forward and as a backward of a stage, microbatch i of a unit starts at slot 2 i and moves
on a stage a slot, then back as fast: the ways down and up take turns on every rank, and no two actions ever want the
same slot. Units follow each other every 2 v p slots, the work of a rank for one. Step (m + (p - 1) / v) T where F = B
and p divides m, as interleaved 1F1B; a turn costs no transfer. p = 2, W = 1, m = 2, chunk 0 has digits, chunk 1 letters
(a = microbatch 0), a prime marks a backward:

    rank 0   0  1  .  a  a' b  b' 0' .  1'
    rank 1   .  0  a  1  b  a' 0' b' 1' .

For drawing and simulation.
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import Option, ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "hanayo"


def _place(sizes: Sizes) -> Placement:
    return Placement.snake(sizes.num_ranks, num_chunks=sizes.num_chunks)


def _make(sizes: Sizes) -> Schedule:
    p, m, v = sizes.num_ranks, sizes.num_microbatches, sizes.num_chunks
    placement = _place(sizes)
    timed: list[list[tuple[int, Compute]]] = [[] for _ in range(p)]
    for index in range(m):
        start = 2 * v * p * (index // p) + 2 * (index % p)
        for stage in map(StageIndex, range(v * p)):
            row, microbatch = timed[placement.rank_of(stage)], MicrobatchIndex(index)
            row.append((start + stage, Compute(stage, Kind.FORWARD, microbatch)))
            row.append((start + 2 * v * p - 1 - stage, Compute(stage, Kind.BACKWARD, microbatch)))
    orders = tuple(tuple(action for _, action in sorted(row, key=lambda one: one[0])) for row in timed)
    return Schedule(_NAME, placement, m, orders)


def _peak(sizes: Sizes, rank: int) -> int:
    unit, v = min(sizes.num_ranks, sizes.num_microbatches), sizes.num_chunks
    return min((v - 1) * unit + 1 + rank, v * unit)


def _span(sizes: Sizes, share: StageCost) -> Fraction | None:
    """A last unit of fewer microbatches takes as long as a whole one, but for the last of it."""
    p, m = sizes.num_ranks, sizes.num_microbatches
    if share.forward != share.backward_input + share.backward_weight:
        return None
    units = -(-m // p)
    return share.total * (p * units + Fraction(m - p * (units - 1) - 1, sizes.num_chunks))


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="waves down and up the ranks: Chimera's bubble with one copy of the model",
    paper="Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, arXiv 2308.15762",
    constraints="any number of ranks, microbatches and waves; for drawing and simulation",
    construct=lambda sizes, _: _make(sizes),
    place=_place,
    chunks=2,
    chunks_of=lambda options: 2 * options["waves"],
    options=(Option("waves", 1, "times that the model runs down the ranks and up again", least=1),),
    runnable=False,
    peak=_peak,
    span=_span,
)
