"""ZB-V: zero bubble with the memory of 1F1B, for a model laid out as a V.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, and more of it in
Penghui Qi, Xinyi Wan, Nyamdavaa Amar, Min Lin: Pipeline Parallelism with Controllable Memory, arXiv
2405.15362. The order is that of the published code (sail-sg/zero-bubble-pipeline-parallelism, scheduler/zbv.py),
written anew here.

p ranks, two stages each: r on the way down (chunk 0) and 2p - 1 - r on the way up (chunk 1), so that rank 0 has both
ends and the turn at rank p - 1 costs no transfer. A microbatch's first stage keeps its activation for long where its
second lets go of it soon, and the other way round: every rank keeps p shares. With F = I = W and microbatches enough no
rank idles between its first and its last action: m (F + I + W) a rank, and (p - 1) F / 2 more for the step. p = 2,
m = 4, all times equal, chunk 0 has digits, chunk 1 letters (a = microbatch 0), a prime marks I, w marks W:

    rank 0   0  1  2  a  a' aw b  b' bw 3  0' 0w c  c' cw 1' 1w d  d' 2' dw 3' 2w 3w .
    rank 1   .  0  a  1  b  a' aw 2  0' 0w c  b' bw 3  1' 1w d  c' 2' d' 3' cw 2w dw 3w

1. Forwards until memory is full: the first stages of the ranks, then from the last rank up the second ones, and
   meanwhile further first ones wherever they delay nothing.
2. In rounds: an input gradient on every rank (of the first stage if what it needs is there, else of the second), then
   a forward on every rank (of the second stage if what it needs is there, else of the first). Before each, weight
   gradients: as many as memory asks for, as many as fit into a gap, and one more where the gap is longer than the rank
   may idle without becoming the one that idles most.
3. The weight gradients that are left.

Whether that one more may come before a forward, and before a gradient of the second stage, is open: all four
combinations are tried, each again with the idle time it led to as what a rank may idle, as long as that helps. With
very unequal stages or little memory all of them may end where a rank lacks its input or room; then every rank simply
does what it can do next (`fullbore.schedules.as_they_come`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.as_they_come import as_they_come
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.draft import DeadEnd, Draft
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "zb-v"


@dataclass(frozen=True, slots=True)
class _Policy:
    spill_before_forward: bool
    spill_before_second_stage: bool


def _construct(sizes: Sizes, costs: ScheduleCosts) -> Schedule:
    """The best of the orders found. Without a cap: p shares, the memory of 1F1B's first rank."""
    caps = costs.memory_cap or (Fraction(_shares(sizes)),) * sizes.num_ranks
    drafts = []
    for choices in product((True, False), repeat=2):
        with suppress(DeadEnd):
            drafts.append(_best(sizes, costs, caps, _Policy(*choices)))
    if not drafts:
        drafts.append(_empty(sizes, costs, caps))
        as_they_come(drafts[0])
    return min(drafts, key=_badness).schedule()


def _shares(sizes: Sizes) -> int:
    return sizes.num_ranks


def _empty(sizes: Sizes, costs: ScheduleCosts, caps: Sequence[Fraction]) -> Draft:
    placement = Placement.snake(sizes.num_ranks, num_chunks=2)
    return Draft(_NAME, placement, costs, num_microbatches=sizes.num_microbatches, shares=caps)


def _badness(draft: Draft) -> tuple[int, int]:
    return draft.span, draft.makespan


def _best(sizes: Sizes, costs: ScheduleCosts, caps: Sequence[Fraction], policy: _Policy) -> Draft:
    found = _lay_out(sizes, costs, caps, policy, approved=[0] * sizes.num_ranks)
    while True:
        try:
            again = _lay_out(sizes, costs, caps, policy, approved=found.idle)
        except DeadEnd:
            return found
        if _badness(again) >= _badness(found):
            return found
        found = again


def _lay_out(
    sizes: Sizes, costs: ScheduleCosts, caps: Sequence[Fraction], policy: _Policy, *, approved: Sequence[int]
) -> Draft:
    """One order. ``approved``: what each rank idled in an earlier try."""
    p, m = sizes.num_ranks, sizes.num_microbatches
    draft = _empty(sizes, costs, caps)
    first = tuple(map(StageIndex, range(p)))
    second = tuple(StageIndex(2 * p - 1 - rank) for rank in range(p))
    _warm_up(draft, first, second)
    for _ in range(2 * m):
        for stage in _gradients(draft, first, second):
            rank = min(stage, 2 * p - 1 - stage)
            gap = draft.fill(rank, _arrival(draft, Kind.BACKWARD_INPUT, stage))
            may_spill = stage < p or policy.spill_before_second_stage
            if may_spill and gap > max(draft.slack(rank), max(approved) - approved[rank] - draft.idle[rank]):
                draft.put_weight(rank)
            draft.put_input(stage)
        for rank in range(p):
            chosen = _forward(draft, first[rank], second[rank])
            if chosen is not None and draft.make_room(rank):
                gap = draft.fill(rank, _arrival(draft, Kind.FORWARD, chosen))
                if policy.spill_before_forward and gap > max(
                    draft.slack(rank), max(approved) - approved[rank] - draft.idle[rank]
                ):
                    draft.put_weight(rank)
                draft.put_forward(chosen)
    draft.finish()
    return draft


def _arrival(draft: Draft, kind: Kind, stage: StageIndex) -> int:
    arrival = draft.arrival(kind, stage)
    if arrival is None:
        raise DeadEnd
    return arrival


def _warm_up(draft: Draft, first: Sequence[StageIndex], second: Sequence[StageIndex]) -> None:
    m = draft.num_microbatches
    for stage in first:
        draft.put_forward(stage)
    for rank in reversed(range(len(first))):
        arrival = _arrival(draft, Kind.FORWARD, second[rank])
        while (
            draft.room[rank] >= draft.activation * (2 + 2 * rank)
            and draft.free_at[rank] + draft.cost(Kind.FORWARD, first[rank]) <= arrival
            and draft.forwards[first[rank]] < m
        ):
            for stage in first[: rank + 1]:
                draft.put_forward(stage)
        draft.put_forward(second[rank])
    counts = draft.forwards
    chunk = first
    for rank in range(1, len(first)):
        while (
            counts[first[rank]] + counts[second[rank]] < counts[first[rank - 1]] + counts[second[rank - 1]]
            or counts[second[rank]] <= counts[second[rank - 1]] < m
        ):
            for stage in chunk[: rank - 1 : -1]:
                if counts[stage] < m:
                    draft.put_forward(stage)
            chunk = second if chunk is first else first


def _gradients(draft: Draft, first: Sequence[StageIndex], second: Sequence[StageIndex]) -> list[StageIndex]:
    """The stage of each rank whose input gradient is next: first stages from the last rank on, then second ones."""
    done, m = draft.inputs, draft.num_microbatches
    late: list[StageIndex] = []
    early: list[StageIndex] = []
    for down, up in zip(first, second, strict=True):
        is_late = done[down] < done[up] and (
            down == len(first) - 1 or done[up] >= m or draft.arrival(Kind.BACKWARD_INPUT, down) is not None
        )
        if is_late:
            late.append(down)
        else:
            early.append(up)
    return [*reversed(late), *early]


def _forward(draft: Draft, down: StageIndex, up: StageIndex) -> StageIndex | None:
    """The stage of a rank whose forward is next: the second one if what it needs is there; None where nothing is."""
    done, m = draft.forwards, draft.num_microbatches
    if done[up] >= m:
        return None
    if done[up] < done[down] and draft.arrival(Kind.FORWARD, up) is not None:
        return up
    return down if done[down] < m and draft.arrival(Kind.FORWARD, down) is not None else None


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return 2 * min(_shares(sizes), sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="zero bubble over a V, in an order made for the costs; 1F1B's memory on every rank",
    paper="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
    constraints="any number of ranks and microbatches",
    construct=_construct,
    place=lambda sizes: Placement.snake(sizes.num_ranks, num_chunks=2),
    chunks=2,
    splits_backward=True,
    cost_driven=True,
    own_cap=_shares,
    peak=_peak,
    peak_is_exact=False,
)
