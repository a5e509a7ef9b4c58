"""ZB-H1: 1F1B with split backwards: a third of its bubble for the same memory.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1.

p ranks, m >= p microbatches; F, I, W are the times of a forward and of the two halves of its backward. Rank r:
w = p - 1 - r forwards; then for microbatch i a forward if one is left and the input gradient of i, and from
w + i = p - 1 on a weight gradient, first in, first out; at the end the weight gradients that are left. The input
gradient goes upstream without waiting for the weight gradient, and the later ranks keep theirs for the end, where they
would idle. Step m (F + I + W) + (p - 1) (F + I - W) if W <= F and W <= I, in flight p on every rank. p = 4, m = 4, all
times equal, a prime marks I, w marks W:

    rank 0   0  1  2  3  .  .  .  0' 0w 1' 1w 2' 2w 3' 3w
    rank 1   .  0  1  2  .  .  0' 3  1' 0w 2' 1w 3' 2w 3w
    rank 2   .  .  0  1  .  0' 2  1' 3  2' 0w 3' 1w 2w 3w
    rank 3   .  .  .  0  0' 1  1' 2  2' 3  3' 0w 1w 2w 3w

In the paper B is the backward for the input alone, so that its (p - 1) (F + B - W) is the idle time above; reports that
count with the whole backward write (p - 1) (F + B - 2 W) for the same. F = I = W = 1: p - 1 either way.
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY", "zero_bubble_order"]

_NAME = "zb-h1"


def _make(sizes: Sizes) -> Schedule:
    p, m = sizes.num_ranks, sizes.num_microbatches
    orders = tuple(
        zero_bubble_order(StageIndex(rank), num_microbatches=m, num_warmup=p - 1 - rank, first_weight_after=p - 1)
        for rank in range(p)
    )
    return Schedule(_NAME, Placement.linear(p), m, orders)


def zero_bubble_order(
    stage: StageIndex, *, num_microbatches: int, num_warmup: int, first_weight_after: int
) -> tuple[Compute, ...]:
    """One stage's order: warmup forwards, then forward and input gradient in turn, and a weight gradient with each from
    the one on that has ``first_weight_after`` warmup forwards and input gradients before it; then what is left."""
    forwards, inputs, weights = (
        [Compute(stage, kind, MicrobatchIndex(index)) for index in range(num_microbatches)]
        for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    )
    order = forwards[:num_warmup]
    done = 0
    for index, gradient in enumerate(inputs):
        order += forwards[num_warmup + index : num_warmup + index + 1]
        order.append(gradient)
        if num_warmup + index >= first_weight_after:
            order.append(weights[done])
            done += 1
    return (*order, *weights[done:])


def _check(sizes: Sizes) -> None:
    p, m = sizes.num_ranks, sizes.num_microbatches
    if m < p:
        raise ScheduleError(
            f"{_NAME} needs num_microbatches of at least num_ranks (num_microbatches={m}, num_ranks={p}); use {p}"
        )


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return sizes.num_ranks


def _span(sizes: Sizes, share: StageCost) -> Fraction | None:
    """Known where a weight gradient fits into the gaps that it fills."""
    if share.backward_weight > min(share.forward, share.backward_input):
        return None
    gap = share.forward + share.backward_input - share.backward_weight
    return Fraction(sizes.num_microbatches * share.total + (sizes.num_ranks - 1) * gap)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="1F1B with split backwards: a third of its bubble, its memory on every rank",
    paper="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
    constraints="num_microbatches of at least num_ranks",
    construct=lambda sizes, _: _make(sizes),
    check=_check,
    splits_backward=True,
    peak=_peak,
    span=_span,
)
