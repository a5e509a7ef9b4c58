"""GPipe: all forwards, then all backwards.

Yanping Huang, Youlong Cheng, Ankur Bapna, Orhan Firat, Mia Xu Chen, Dehao Chen, HyoukJoong Lee, Jiquan Ngiam,
Quoc V. Le, Yonghui Wu, Zhifeng Chen: GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism,
arXiv 1811.06965, section 2.2 (the order) and 2.3 (the bubble).

p ranks, m microbatches, T = F + B. Step (m + p - 1) T, idle (p - 1) T, in flight m on every rank.
p = 4, m = 4, one slot each for F (microbatch number) and B (number with a prime):

    rank 0   0  1  2  3  .  .  .  .  .  .  0' 1' 2' 3'
    rank 1   .  0  1  2  3  .  .  .  .  0' 1' 2' 3' .
    rank 2   .  .  0  1  2  3  .  .  0' 1' 2' 3' .  .
    rank 3   .  .  .  0  1  2  3  0' 1' 2' 3' .  .  .

Backwards run in the order of the forwards, as torch.distributed.pipelining's GPipe does; the time is the same in any.
"""

from __future__ import annotations

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.formulas import fill_and_drain_span
from fullbore.schedules.sizes import Sizes, require_sizes

__all__ = ["ENTRY", "gpipe"]


def gpipe(num_ranks: int, *, num_microbatches: int) -> Schedule:
    """The schedule above, for any sizes."""
    require_sizes("gpipe", num_ranks=num_ranks, num_microbatches=num_microbatches)
    microbatches = [MicrobatchIndex(index) for index in range(num_microbatches)]
    orders = tuple(
        tuple(Compute(stage, kind, mb) for kind in (Kind.FORWARD, Kind.BACKWARD) for mb in microbatches)
        for stage in map(StageIndex, range(num_ranks))
    )
    return Schedule("gpipe", Placement.linear(num_ranks), num_microbatches, orders)


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return sizes.num_microbatches


ENTRY = ScheduleEntry(
    name="gpipe",
    summary="all forwards, then all backwards; keeps every microbatch's activations",
    paper="Huang et al., GPipe, arXiv 1811.06965",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, _: gpipe(sizes.num_ranks, num_microbatches=sizes.num_microbatches),
    peak=_peak,
    span=fill_and_drain_span,
)
