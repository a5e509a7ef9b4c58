"""ZB-1p: zero bubble made for the costs at hand, in the memory of 1F1B.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.

p ranks, one stage each; every rank keeps at most p microbatches, as 1F1B's first rank does. The order is what
`fullbore.schedules.zero_bubble_heuristic` finds for the stage times, the transfers and that room. With F = I = W it is
ZB-H1's order or one as fast: step m (F + I + W) + (p - 1) (F + I - W). p = 4, m = 4, all times equal, a prime marks I,
w marks W:

    rank 0   0  1  2  3  .  .  .  0' 0w 1' 1w 2' 2w 3' 3w
    rank 1   .  0  1  2  3  .  0' 0w 1' 1w 2' 2w 3' 3w .
    rank 2   .  .  0  1  2  0' 3  1' 0w 2' 1w 3' 2w 3w .
    rank 3   .  .  .  0  0' 1  1' 2  2' 3  3' 0w 1w 2w 3w
"""

from __future__ import annotations

from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.schedules.zero_bubble_heuristic import zero_bubble

__all__ = ["ENTRY"]

_NAME = "zb-1p"


def _shares(sizes: Sizes) -> int:
    return sizes.num_ranks


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return min(_shares(sizes), sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="split backwards in an order made for the costs; 1F1B's memory on every rank",
    paper="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, costs: zero_bubble(_NAME, sizes, costs, shares=_shares(sizes)),
    splits_backward=True,
    cost_driven=True,
    own_cap=_shares,
    peak=_peak,
    peak_is_exact=False,
)
