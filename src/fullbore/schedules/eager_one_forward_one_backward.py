"""Eager 1F1B: 1F1B with up to twice the warmup, so that a transfer hides behind a forward that is already there.

Yonghao Zhuang, Hexu Zhao, Lianmin Zheng, Zhuohan Li, Eric P. Xing, Qirong Ho, Joseph E. Gonzalez, Ion Stoica,
Hao Zhang: On Optimizing the Communication of Model Parallelism, arXiv 2211.05322, section 4.

p ranks, m microbatches, T = F + B. Rank r: w = min(2 (p - 1 - r), m) forwards, then as 1F1B. Without transfer time as
1F1B: step (m + p - 1) T, idle (p - 1) T. In flight min(2 (p - r) - 1, m). p = 4, m = 6, B as long as F:

    rank 0   0  1  2  3  4  5  .  0' .  1' .  2' .  3' .  4' .  5'
    rank 1   .  0  1  2  3  4  0' 5  1' .  2' .  3' .  4' .  5' .
    rank 2   .  .  0  1  2  0' 3  1' 4  2' 5  3' .  4' .  5' .  .
    rank 3   .  .  .  0  0' 1  1' 2  2' 3  3' 4  4' 5  5' .  .  .
"""

from __future__ import annotations

from fullbore.ids import StageIndex
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.formulas import fill_and_drain_span
from fullbore.schedules.one_forward_one_backward import alternating
from fullbore.schedules.sizes import Sizes, require_sizes

__all__ = ["ENTRY", "eager_one_forward_one_backward"]


def eager_one_forward_one_backward(num_ranks: int, *, num_microbatches: int) -> Schedule:
    """The schedule above, for any sizes."""
    require_sizes("eager-1f1b", num_ranks=num_ranks, num_microbatches=num_microbatches)
    orders = tuple(
        alternating(StageIndex(rank), num_microbatches=num_microbatches, num_warmup=2 * (num_ranks - 1 - rank))
        for rank in range(num_ranks)
    )
    return Schedule("eager-1f1b", Placement.linear(num_ranks), num_microbatches, orders)


def _peak(sizes: Sizes, rank: int) -> int:
    return min(2 * (sizes.num_ranks - rank) - 1, sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name="eager-1f1b",
    summary="1F1B with twice the warmup, which hides transfers behind forwards",
    paper="Zhuang et al., On Optimizing the Communication of Model Parallelism, arXiv 2211.05322",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, _: eager_one_forward_one_backward(sizes.num_ranks, num_microbatches=sizes.num_microbatches),
    peak=_peak,
    span=fill_and_drain_span,
)
