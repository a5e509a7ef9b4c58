"""The heuristic of the zero-bubble paper: an order for given costs, links and memory, stages in one row.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1, as its
published code makes it (sail-sg/zero-bubble-pipeline-parallelism, scheduler/zb.py); written anew here.

1. One forward of microbatch 0 a rank, then as many more as fit before its gradient comes back and into memory; a rank
   never has fewer of them than the next one. Then the input gradients of microbatch 0, from the last rank up.
2. For each further microbatch: a forward on every rank, left out where the rank is two ahead of the next one and the
   forward would hold up the next gradient; then an input gradient on every rank, from the last one up. Before each of
   them, weight gradients: as many as memory asks for, as many as fit into a gap, and one more where the gap is longer
   than the rank can idle without becoming the one that idles most.
3. The weight gradients that are left.

Three choices are open, and every combination is tried, as published: may a rank idle rather than start a forward that
delays the first gradient; are forwards left out at all; does a weight gradient spill over a gap in any case. The
shortest span of any one rank wins (the paper's measure), then the shortest makespan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.draft import Draft
from fullbore.schedules.sizes import Sizes

__all__ = ["zero_bubble"]


@dataclass(frozen=True, slots=True)
class _Policy:
    idle_before_first: bool
    leave_out_forwards: bool
    spill: bool


def zero_bubble(name: str, sizes: Sizes, costs: ScheduleCosts, *, shares: int) -> Schedule:
    """The best order found that keeps at most ``shares`` a rank, or the cap of the costs if that is less.

    Raises:
        ScheduleError: the cap has no room for one microbatch.
    """
    given = costs.memory_cap or (Fraction(shares),) * sizes.num_ranks
    caps = [min(cap, Fraction(shares)) for cap in given]
    policies = [_Policy(*choices) for choices in product((False, True), repeat=3)]
    drafts = [_lay_out(name, sizes, costs, caps=caps, policy=policy) for policy in policies]
    return min(drafts, key=lambda draft: (draft.span, draft.makespan)).schedule()


def _lay_out(name: str, sizes: Sizes, costs: ScheduleCosts, *, caps: Sequence[Fraction], policy: _Policy) -> Draft:
    placement = Placement.linear(sizes.num_ranks)
    draft = Draft(name, placement, costs, num_microbatches=sizes.num_microbatches, shares=caps)
    down = tuple(map(StageIndex, range(sizes.num_ranks)))
    up = down[::-1]
    for stage in down:
        draft.put_forward(stage)
    for stage, more in zip(down, _warmup(draft, up, policy), strict=True):
        for _ in range(more):
            draft.put_forward(stage)
    for stage in up:
        draft.put_input(stage)
    for _ in range(1, sizes.num_microbatches):
        for stage in _forwards(draft, down, policy):
            draft.make_room(stage)
            _fill(draft, Kind.FORWARD, stage, policy)
            draft.put_forward(stage)
        for stage in up:
            _fill(draft, Kind.BACKWARD_INPUT, stage, policy)
            if stage == 0 and draft.forwards[0] == sizes.num_microbatches:
                while draft.waiting[0]:
                    draft.put_weight(Rank(0))
            draft.put_input(stage)
    draft.finish()
    return draft


def _fill(draft: Draft, kind: Kind, stage: StageIndex, policy: _Policy) -> None:
    arrival = draft.arrival(kind, stage)
    assert arrival is not None, "stages are walked in the order of the data"
    gap = draft.fill(stage, arrival)
    if gap and (policy.spill or gap > draft.slack(stage)):
        draft.put_weight(stage)


def _warmup(draft: Draft, up: Iterable[StageIndex], policy: _Policy) -> list[int]:
    """How many forwards each rank adds before its first gradient."""
    more = [0] * draft.placement.num_ranks
    back = 0
    for stage in up:
        forward, below = draft.cost(Kind.FORWARD, stage), StageIndex(stage + 1)
        free_at = draft.free_at[stage]
        gradient = free_at if below == len(more) else back + draft.delay(stage, below)
        if below < len(more):
            room = draft.room[stage] // draft.activation
            left = min(room, draft.num_microbatches - draft.forwards[stage])
            while more[stage] < left and (
                free_at + forward <= gradient or (not policy.idle_before_first and free_at < gradient)
            ):
                free_at += forward
                more[stage] += 1
        back = max(free_at, gradient) + draft.cost(Kind.BACKWARD_INPUT, stage)
    for rank in range(1, len(more)):
        all_of_them = draft.forwards[rank] + more[rank] == draft.num_microbatches and more[rank] <= more[rank - 1]
        more[rank] = more[rank] if all_of_them else min(more[rank], max(more[rank - 1] - 1, 0))
    return more


def _forwards(draft: Draft, down: Sequence[StageIndex], policy: _Policy) -> Iterable[StageIndex]:
    """The ranks that run a forward this round: never one whose next rank does not."""
    chosen = [draft.forwards[stage] < draft.num_microbatches for stage in down]
    for stage, below in pairwise(down):
        if chosen[stage] and policy.leave_out_forwards and draft.forwards[stage] >= draft.forwards[below] + 2:
            chosen[stage] = _helps(draft, stage, below)
    for stage in reversed(down[:-1]):
        chosen[stage] = chosen[stage] and chosen[stage + 1]
    return [stage for stage in down if chosen[stage]]


def _helps(draft: Draft, stage: StageIndex, below: StageIndex) -> bool:
    """Does the next gradient wait for this forward less than the rank may idle?"""
    pair = draft.cost(Kind.FORWARD, below) + draft.cost(Kind.BACKWARD_INPUT, below)
    gradient = draft.free_at[below] + pair + draft.delay(stage, below)
    if draft.free_at[stage] >= gradient:
        return False
    short = draft.activation - draft.room[stage]
    weights = -(-short // draft.freed_by_weight) if short > 0 and draft.freed_by_weight else 0
    weights = min(weights, len(draft.waiting[stage]))
    end = draft.free_at[stage] + draft.cost(Kind.FORWARD, stage) + weights * draft.cost(Kind.BACKWARD_WEIGHT, stage)
    if end <= gradient:
        return True
    return gradient - draft.free_at[stage] > draft.slack(stage)
