"""Seq1F1B: 1F1B over slices of sequences, so that filling the pipe takes a slice's time and not a microbatch's.

Ao Sun, Weilin Zhao, Xu Han, Cheng Yang, Zhiyuan Liu, Chuan Shi, Maosong Sun: Seq1F1B: Efficient Sequence-Level Pipeline
Parallelism for Large Language Model Training, arXiv 2406.03488, section 3.

p ranks, m microbatches, s slices of each, T = F + B of a microbatch on a rank's share. Causal attention reads what the
slices before left behind, so forwards go from a microbatch's first slice to its last and backwards from the last to the
first. Rank r: w = min(p - 2 - r + s, m s) forwards of slices, then a forward and a backward of a slice in turn, then
the backwards left: with one slice 1F1B. Step (m + (p - 1) / s) T if all slices take equally long, in flight
min(p - 1 - r + s, m s) slices, s of them one share. p = 2, m = 2, s = 2, F and B of a slice equally long, 0 1 are the
slices of the first microbatch, a b those of the second, a prime marks a backward:

    rank 0   0  1  a  .  1' b  0' .  b' a'
    rank 1   .  0  1  1' a  0' b  b' a' .

For drawing and simulation: fullbore's stages run whole sequences.
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.ids import MicrobatchIndex, SliceIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import Option, ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "seq-1f1b"


def _make(sizes: Sizes) -> Schedule:
    p, m, s = sizes.num_ranks, sizes.num_microbatches, sizes.options["slices"]
    cuts = [None] if s == 1 else [SliceIndex(index) for index in range(s)]
    up = [(MicrobatchIndex(mb), cut) for mb in range(m) for cut in cuts]
    down = [(MicrobatchIndex(mb), cut) for mb in range(m) for cut in reversed(cuts)]

    def order(stage: StageIndex) -> tuple[Compute, ...]:
        forwards = [Compute(stage, Kind.FORWARD, mb, cut) for mb, cut in up]
        backwards = [Compute(stage, Kind.BACKWARD, mb, cut) for mb, cut in down]
        warmup = _in_flight(sizes, stage) - 1
        actions = forwards[:warmup]
        for index, backward in enumerate(backwards):
            actions += forwards[warmup + index : warmup + index + 1]
            actions.append(backward)
        return tuple(actions)

    return Schedule(_NAME, Placement.linear(p), m, tuple(map(order, map(StageIndex, range(p)))), s)


def _in_flight(sizes: Sizes, rank: int) -> int:
    slices = sizes.options["slices"]
    return min(sizes.num_ranks - 1 - rank + slices, sizes.num_microbatches * slices)


def _span(sizes: Sizes, share: StageCost) -> Fraction:
    return share.total * (sizes.num_microbatches + Fraction(sizes.num_ranks - 1, sizes.options["slices"]))


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="1F1B over slices of sequences; an s-th of the bubble, and about an s-th of the memory",
    paper="Sun et al., Seq1F1B: Efficient Sequence-Level Pipeline Parallelism, arXiv 2406.03488",
    constraints="any number of ranks, microbatches and slices; for drawing and simulation",
    construct=lambda sizes, _: _make(sizes),
    options=(Option("slices", 2, "slices into which each sequence is cut", least=1),),
    runnable=False,
    peak=_in_flight,
    span=_span,
)
