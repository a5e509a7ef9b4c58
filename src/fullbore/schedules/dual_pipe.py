"""DualPipe: two pipelines in opposite directions, whose forwards and backwards run in pairs.

DeepSeek-AI: DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.2.1, figure 5, and the published code
(deepseek-ai/DualPipe, dualpipe/dualpipe.py).

p ranks, p even; m microbatches, m even and at least 2p. Every rank holds two stages, r of the pipeline down and
p - 1 - r of the pipeline up, so there are two copies of the model, whose gradients are added up at the end of the step.
The first m / 2 microbatches go down, the others up. A rank's place is min(r, p - 1 - r) from an end; it takes the eight
steps of `fullbore.schedules.dual_pipe_v` for a V of p / 2 ranks, with the pipeline that comes in nearer to it as the
first. The paper's table gives the idle time (p / 2 - 1) (F&B + B - 3 W), where F&B is a forward and a backward that run
at once and B is the whole backward; where the two take F&B = F + B, the formula is exact for F = I = W. In flight
p + 1. p = 2, m = 4, all times equal; microbatches 0 1 go down, 2 3 up, a prime marks B or I, w marks W:

    rank 0   0  2  1  2' 2' 3  0' 0' 3' 3' 1' 1w
    rank 1   2  0  3  0' 0' 1  2' 2' 1' 1' 3' 3w
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.dual_pipe_v import DualOrder
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes, even_beside

__all__ = ["ENTRY"]

_NAME = "dualpipe"


def _make(sizes: Sizes) -> Schedule:
    p, m = sizes.num_ranks, sizes.num_microbatches
    microbatches = tuple(map(MicrobatchIndex, range(m)))
    rows = []
    for rank in range(p):
        down = (StageIndex(rank), microbatches[: m // 2])
        up = (StageIndex(p + rank), microbatches[m // 2 :])
        flows = (down, up) if rank < p // 2 else (up, down)
        rows.append(DualOrder(flows).steps(min(rank, p - 1 - rank), num_ranks=p // 2))
    orders = tuple(tuple(row.order) for row in rows)
    overlaps = frozenset(pair for row in rows for pair in row.overlaps)
    return Schedule(_NAME, Placement.bidirectional(p), m, orders, overlaps=overlaps)


def _check(sizes: Sizes) -> None:
    p, m = sizes.num_ranks, sizes.num_microbatches
    if p % 2:
        raise ScheduleError(f"{_NAME} needs an even number of ranks (num_ranks={p}); use {even_beside(p)}")
    if m < 2 * p or m % 2:
        raise ScheduleError(
            f"{_NAME} needs an even num_microbatches of at least 2 num_ranks (num_microbatches={m}, num_ranks={p}); "
            f"use {max(m + m % 2, 2 * p)}"
        )


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return sizes.num_ranks + 1


def _span(sizes: Sizes, share: StageCost) -> Fraction | None:
    """The table's formula, with F&B = F + B, where it is exact."""
    if not share.forward == share.backward_input == share.backward_weight:
        return None
    backward = share.backward_input + share.backward_weight
    gap = share.forward + 2 * backward - 3 * share.backward_weight  # F&B + B - 3 W
    return Fraction(sizes.num_microbatches * share.total + (sizes.num_ranks // 2 - 1) * gap)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="two pipelines in opposite directions, forwards and backwards in pairs; two copies of the model",
    paper="DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437",
    constraints="an even number of ranks; an even num_microbatches of at least 2 num_ranks",
    construct=lambda sizes, _: _make(sizes),
    check=_check,
    place=lambda sizes: Placement.bidirectional(sizes.num_ranks),
    chunks=2,
    splits_backward=True,
    peak=_peak,
    span=_span,
)
