"""1F1B: a short warmup, then one forward, one backward in turn, so that an activation is freed as soon as possible.

The order: Deepak Narayanan, Aaron Harlap, Amar Phanishayee, Vivek Seshadri, Nikhil R. Devanur, Gregory R. Ganger,
Phillip B. Gibbons, Matei Zaharia: PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019 (an earlier
report is arXiv 1806.03377), section 3.2. With a flush at the end of the step, as here: PipeDream-Flush in Deepak
Narayanan, Amar Phanishayee, Kaiyu Shi, Xie Chen, Matei Zaharia: Memory-Efficient Pipeline-Parallel DNN Training,
arXiv 2006.09503, section 3.2.

p ranks, m microbatches, T = F + B. Rank r: w = min(p - 1 - r, m) forwards, then forward and backward in turn, then the
remaining backwards. Step (m + p - 1) T, idle (p - 1) T, in flight min(p - r, m). p = 4, m = 4, B as long as F:

    rank 0   0  1  2  3  .  .  .  0' .  1' .  2' .  3'
    rank 1   .  0  1  2  .  .  0' 3  1' .  2' .  3' .
    rank 2   .  .  0  1  .  0' 2  1' 3  2' .  3' .  .
    rank 3   .  .  .  0  0' 1  1' 2  2' 3  3' .  .  .
"""

from __future__ import annotations

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.formulas import fill_and_drain_makespan
from fullbore.schedules.sizes import require_sizes

__all__ = ["ENTRY", "alternating", "one_forward_one_backward"]


def one_forward_one_backward(num_ranks: int, *, num_microbatches: int) -> Schedule:
    """The schedule above, for any sizes; with fewer microbatches than ranks the steady phase is empty or short."""
    require_sizes("1f1b", num_ranks=num_ranks, num_microbatches=num_microbatches)
    orders = tuple(
        alternating(StageIndex(rank), num_microbatches=num_microbatches, num_warmup=num_ranks - 1 - rank)
        for rank in range(num_ranks)
    )
    return Schedule("1f1b", Placement.linear(num_ranks), num_microbatches, orders)


def alternating(stage: StageIndex, *, num_microbatches: int, num_warmup: int) -> tuple[Compute, ...]:
    """One stage's order: warmup forwards, then forward and backward in turn, then the backwards that are left."""
    warmup = min(num_warmup, num_microbatches)
    order = [Compute(stage, Kind.FORWARD, MicrobatchIndex(index)) for index in range(warmup)]
    for index in range(num_microbatches):
        if warmup + index < num_microbatches:
            order.append(Compute(stage, Kind.FORWARD, MicrobatchIndex(warmup + index)))
        order.append(Compute(stage, Kind.BACKWARD, MicrobatchIndex(index)))
    return tuple(order)


def _peak_activations(num_ranks: int, *, num_microbatches: int, rank: int) -> int:
    return min(num_ranks - rank, num_microbatches)


ENTRY = ScheduleEntry(
    name="1f1b",
    summary="short warmup, then one forward, one backward in turn; keeps at most p - rank microbatches",
    paper="Narayanan et al., PipeDream-Flush in Memory-Efficient Pipeline-Parallel DNN Training, arXiv 2006.09503",
    constraints="any number of ranks and microbatches",
    build=one_forward_one_backward,
    chunks=1,
    splits_backward=False,
    peak_activations=_peak_activations,
    makespan=fill_and_drain_makespan,
)
