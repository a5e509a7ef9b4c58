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

``extra_warmup`` k makes the warmup w = min((1 + k) (p - 1 - r), m): k more forwards for every rank downstream. A round
trip between neighbours then has k + 2 slots instead of 2, so transfers of up to k T / 2 leave no gap in the steady
phase; in flight min((1 + k) (p - 1 - r) + 1, m). k = 1 is eager 1F1B (Zhuang et al., arXiv 2211.05322, section 4).
The same number of forwards more on *every* rank would not do: what bridges a transfer is the lead over the next rank.
"""

from __future__ import annotations

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import Option, ScheduleEntry
from fullbore.schedules.formulas import fill_and_drain_span
from fullbore.schedules.sizes import Sizes, require_sizes

__all__ = ["ENTRY", "alternating", "one_forward_one_backward"]


def one_forward_one_backward(num_ranks: int, *, num_microbatches: int, extra_warmup: int = 0) -> Schedule:
    """The schedule above, for any sizes; with fewer microbatches than ranks the steady phase is empty or short."""
    require_sizes("1f1b", num_ranks=num_ranks, num_microbatches=num_microbatches)
    lead = 1 + extra_warmup
    orders = tuple(
        alternating(StageIndex(rank), num_microbatches=num_microbatches, num_warmup=lead * (num_ranks - 1 - rank))
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


def _peak(sizes: Sizes, rank: int) -> int:
    lead = 1 + sizes.options["extra_warmup"]
    return min(lead * (sizes.num_ranks - 1 - rank) + 1, sizes.num_microbatches)


def _make(sizes: Sizes) -> Schedule:
    return one_forward_one_backward(
        sizes.num_ranks, num_microbatches=sizes.num_microbatches, extra_warmup=sizes.options["extra_warmup"]
    )


ENTRY = ScheduleEntry(
    name="1f1b",
    summary="short warmup, then one forward, one backward in turn; keeps at most p - rank microbatches",
    paper="Narayanan et al., PipeDream-Flush in Memory-Efficient Pipeline-Parallel DNN Training, arXiv 2006.09503",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, _: _make(sizes),
    options=(Option("extra_warmup", 0, "further warmup forwards for every rank downstream; they hide slow transfers"),),
    peak=_peak,
    span=fill_and_drain_span,
)
