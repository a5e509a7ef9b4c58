"""ZB-2p: zero bubble made for the costs at hand, in twice the memory of 1F1B.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.

As `fullbore.schedules.zero_bubble_1p` with room for 2p microbatches a rank: enough for no rank to idle between its
first and its last action, whatever F, I and W are, if there are microbatches enough. Ranks still start one after the
other: with F = I = W the step takes m (F + I + W) + (p - 1) F. p = 3, m = 6, all times equal, a prime marks I, w marks
W:

    rank 0   0  1  2  3  4  0' 5  0w 1' 1w 2' 2w 3' 3w 4' 4w 5' 5w .  .
    rank 1   .  0  1  2  0' 3  1' 4  2' 5  3' 0w 4' 1w 5' 2w 3w 4w 5w .
    rank 2   .  .  0  0' 1  1' 2  2' 3  3' 4  4' 5  5' 0w 1w 2w 3w 4w 5w
"""

from __future__ import annotations

from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.schedules.zero_bubble_heuristic import zero_bubble

__all__ = ["ENTRY"]

_NAME = "zb-2p"


def _shares(sizes: Sizes) -> int:
    return 2 * sizes.num_ranks


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return min(_shares(sizes), sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="split backwards in an order made for the costs; no rank idles in between; twice 1F1B's memory",
    paper="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, costs: zero_bubble(_NAME, sizes, costs, shares=_shares(sizes)),
    splits_backward=True,
    cost_driven=True,
    own_cap=_shares,
    peak=_peak,
    peak_is_exact=False,
)
