"""As they come: every rank does what it can do first. The plainest order for given costs, and one that always exists.

In order of time, each rank takes whatever can start earliest: of what can start at once a gradient before a forward,
and a later stage before an earlier one; a weight gradient only where nothing else can start. A forward needs room for
its activation, and must leave room for one of each later stage of the rank: so the oldest microbatch can always go on,
and no rank ever waits for memory that only a later microbatch could free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Kind
from fullbore.schedules.draft import Draft

__all__ = ["as_they_come"]


def as_they_come(draft: Draft) -> None:
    """Finish a draft that nothing has been put into. O(p + v) for each action, which changes only what its own rank and
    those of the neighbouring stages can do."""
    placement = draft.placement
    stages = [placement.stages_of(Rank(rank)) for rank in range(placement.num_ranks)]
    first = [min(_choices(draft, Rank(rank), held), default=None) for rank, held in enumerate(stages)]
    while choices := [choice for choice in first if choice is not None]:
        _, _, rank, kind, stage = min(choices)
        changed = {rank}
        if kind is Kind.BACKWARD_INPUT:
            draft.put_input(stage)
            above = placement.previous_stage(stage)
            changed |= set() if above is None else {placement.rank_of(above)}
        elif kind is Kind.FORWARD:
            draft.put_forward(stage)
            below = placement.next_stage(stage)
            changed |= set() if below is None else {placement.rank_of(below)}
        else:
            draft.put_weight(rank)
        for one in changed:
            first[one] = min(_choices(draft, one, stages[one]), default=None)


def _choices(
    draft: Draft, rank: Rank, stages: Sequence[StageIndex]
) -> Iterator[tuple[int, int, Rank, Kind, StageIndex]]:
    """(start, preference, rank, kind, stage) of everything the rank could do next."""
    free_at = draft.free_at[rank]
    for place, stage in enumerate(stages):
        later = len(stages) - 1 - place
        gradient = draft.arrival(Kind.BACKWARD_INPUT, stage)
        if gradient is not None:
            yield max(free_at, gradient), later, rank, Kind.BACKWARD_INPUT, stage
        data = draft.arrival(Kind.FORWARD, stage) if draft.forwards[stage] < draft.num_microbatches else None
        if data is not None and draft.room[rank] >= draft.activation * (1 + later):
            yield max(free_at, data), len(stages) + later, rank, Kind.FORWARD, stage
    if draft.waiting[rank]:
        yield free_at, 2 * len(stages), rank, Kind.BACKWARD_WEIGHT, draft.waiting[rank][0][0]
