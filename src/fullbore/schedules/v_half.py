"""V-Half: half of 1F1B's memory, about half of its bubble.

Penghui Qi, Xinyi Wan, Nyamdavaa Amar, Min Lin: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
section 3.

p ranks, two stages each in a V, slots in units of one pass (F = I = W). Rank r of a microbatch: forwards at 2 r and
3p - 2 - r, input gradients at 3p + q + 2 r - 1 and 6p + q - 2 - r, q = 3 if p is even, else 0. The first wave goes down
at half speed, so that its stage, whose activation lives longest, is met soon; every rank keeps (p + 2) // 2 shares.
How a block becomes a schedule, `fullbore.schedules.building_block` says. The idle time does not grow with m while
W + 2 I >= 2 F and W + 2 F >= 2 I; there is no closed form: p = 4: 2.5 F of a share, p = 8: 8.5 F. p = 2,
m = 4, all times equal, chunk 0 has digits, chunk 1 letters (a = microbatch 0), a prime marks I, w marks W:

    rank 0   0  1  2  a  a' aw b  .  0' b' bw c  0w 3  1' c' cw d  d' 2' dw 3' 1w 2w 3w
    rank 1   .  0  a  1  b  a' aw 0' 0w 2  c  b' 1' bw 3  1w d  c' 2' d' 3' cw dw 2w 3w
"""

from __future__ import annotations

from fullbore.ir.placement import Placement
from fullbore.schedules.building_block import repeated
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "v-half"


def _block(num_ranks: int, rank: int) -> tuple[int, int, int, int]:
    """Slots of: forward of the first stage, of the second, input gradient of the second, of the first."""
    gap = 3 if num_ranks % 2 == 0 else 0
    return (
        2 * rank,
        3 * num_ranks - 2 - rank,
        3 * num_ranks + gap + 2 * rank - 1,
        6 * num_ranks + gap - 2 - rank,
    )


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return 2 * min((sizes.num_ranks + 2) // 2, sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="a V with split backwards that keeps half of 1F1B's memory; about half of its bubble",
    paper="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, _: repeated(_NAME, sizes, _block),
    place=lambda sizes: Placement.snake(sizes.num_ranks, num_chunks=2),
    chunks=2,
    splits_backward=True,
    peak=_peak,
    peak_is_exact=False,
)
