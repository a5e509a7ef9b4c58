"""V-Min: a third of 1F1B's memory.

Penghui Qi, Xinyi Wan, Nyamdavaa Amar, Min Lin: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
section 3.

p ranks, two stages each in a V, slots in units of one pass (F = I = W). Rank r of a microbatch: forwards at r and
2p - 1 - r, input gradients at 2p + q + r and 4p + q - 1 - r, q = 2 if 3 divides p, else 0: as fast down, up and back as
data can go, so every rank keeps (p + 4) // 3 shares, the least there is. How a block becomes a schedule,
`fullbore.schedules.building_block` says. The idle time is the same for every m only where F = I = W (p = 4: 5.5 F of a
share, p = 8: 13.5 F). With other costs every microbatch waits for the next one somewhere, and the idle time grows with
m: F = 1, I = 1.2, W = 0.8 and p = 8 gives 23.7, 33.3 and 52.5 for m = 16, 32 and 64. Simulate it with measured costs.
p = 2, m = 4, all times equal, chunk 0 has digits, chunk 1 letters (a = microbatch 0), a prime marks I, w marks W:

    rank 0   0  1  .  a  a' aw .  0' 0w b  b' bw 2  1' 1w c  c' cw 3  2' 2w d  d' dw .  3' 3w
    rank 1   .  0  a  .  .  a' 0' 1  b  aw 0w b' 1' 2  c  bw 1w c' 2' 3  d  cw 2w d' 3' dw 3w
"""

from __future__ import annotations

from fullbore.ir.placement import Placement
from fullbore.schedules.building_block import repeated
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "v-min"


def _block(num_ranks: int, rank: int) -> tuple[int, int, int, int]:
    """Slots of: forward of the first stage, of the second, input gradient of the second, of the first."""
    gap = 2 if num_ranks % 3 == 0 else 0
    return rank, 2 * num_ranks - 1 - rank, 2 * num_ranks + gap + rank, 4 * num_ranks + gap - 1 - rank


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return 2 * min((sizes.num_ranks + 4) // 3, sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="a V with split backwards that keeps a third of 1F1B's memory; slow unless F, I and W are alike",
    paper="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, _: repeated(_NAME, sizes, _block),
    place=lambda sizes: Placement.snake(sizes.num_ranks, num_chunks=2),
    chunks=2,
    splits_backward=True,
    peak=_peak,
    peak_is_exact=False,
)
