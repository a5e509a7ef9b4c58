"""ZB-H2: no rank idles between its first and its last action, for twice the memory of 1F1B.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.2.

As ZB-H1 (`fullbore.schedules.zero_bubble_h1`) with twice the warmup: w = 2 (p - 1 - r) forwards, weight gradients from
w + i = 2 (p - 1) on; m >= 2p - 1. In flight 2p - 1 on every rank. With F = I = W the ranks start one after the other
and end one after the other, each busy from its first action to its last: m (F + I + W) a rank, and for the step
(p - 1) F more. p = 3, m = 5, all times equal, a prime marks I, w marks W:

    rank 0   0  1  2  3  4  0' 0w 1' 1w 2' 2w 3' 3w 4' 4w .  .
    rank 1   .  0  1  2  0' 3  1' 4  2' 0w 3' 1w 4' 2w 3w 4w .
    rank 2   .  .  0  0' 1  1' 2  2' 3  3' 4  4' 0w 1w 2w 3w 4w

So "zero bubble" is the time of one rank. It becomes time of the step where ranks need not start and end a step
together, which a norm over all ranks or a reduction before the update prevents.
"""

from __future__ import annotations

from fullbore.errors import ScheduleError
from fullbore.ids import StageIndex
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.formulas import fill_span
from fullbore.schedules.sizes import Sizes
from fullbore.schedules.zero_bubble_h1 import zero_bubble_order

__all__ = ["ENTRY"]

_NAME = "zb-h2"


def _make(sizes: Sizes) -> Schedule:
    p, m = sizes.num_ranks, sizes.num_microbatches
    orders = tuple(
        zero_bubble_order(
            StageIndex(rank), num_microbatches=m, num_warmup=2 * (p - 1 - rank), first_weight_after=2 * (p - 1)
        )
        for rank in range(p)
    )
    return Schedule(_NAME, Placement.linear(p), m, orders)


def _check(sizes: Sizes) -> None:
    p, m = sizes.num_ranks, sizes.num_microbatches
    if m < 2 * p - 1:
        raise ScheduleError(
            f"{_NAME} needs num_microbatches of at least 2 num_ranks - 1 (num_microbatches={m}, num_ranks={p}); "
            f"use {2 * p - 1}"
        )


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return 2 * sizes.num_ranks - 1


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="ZB-H1 with twice the warmup: no rank idles between its first and last action; twice the memory",
    paper="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
    constraints="num_microbatches of at least 2 num_ranks - 1",
    construct=lambda sizes, _: _make(sizes),
    check=_check,
    splits_backward=True,
    peak=_peak,
    span=fill_span,
)
