"""A proven lower bound on the makespan of any order of the same work: the load bound.

    bound = max over ranks of  head + work + tail

head: the rank's first action cannot start before one microbatch has come through the stages upstream. work: all the
rank has to do. tail: after the rank's last action, at least what is left of that microbatch's way back upstream. A
weight gradient ends no such way, so a rank with split backwards has no tail.

1F1B, p = 4, m = 8, F = 1, B = 2, last rank: 3 + 24 + 6 = 33, its very makespan: with whole backwards and free links
nothing is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fullbore.costs.delays import boundary_delays
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule

__all__ = ["load_bound"]


def load_bound(
    schedule: Schedule, *, costs: Sequence[StageCost], links: Sequence[Link] = (), message_bytes: int = 0
) -> int:
    """In the unit of the costs. Linear in the number of actions.

    Args:
        costs: one for each stage.
        links: one for each boundary; used only where the boundary joins different ranks. None: all free.
    """
    delays = boundary_delays(schedule.placement, links=links, message_bytes=message_bytes)
    kinds = {(action.stage, action.kind) for order in schedule.orders for action in order}
    head, tail = [0] * schedule.num_stages, [0] * schedule.num_stages
    for stream in schedule.placement.streams:
        for above, stage in pairwise(stream):
            delay = delays[min(above, stage)]
            whole = (above, Kind.BACKWARD_INPUT) not in kinds
            back = costs[above].of(Kind.BACKWARD if whole else Kind.BACKWARD_INPUT)
            head[stage] = head[above] + delay + costs[above].forward
            tail[stage] = tail[above] + delay + (back if any((above, k) in kinds for k in _BACKWARDS) else 0)
    return max(
        min(head[stage] for stage in schedule.placement.stages_of(rank))
        + sum(costs[action.stage].of(action.kind) for action in schedule.order_of(rank))
        + _least_tail(schedule, rank, tail=tail)
        for rank in map(Rank, range(schedule.num_ranks))
    )


_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


def _least_tail(schedule: Schedule, rank: Rank, *, tail: Sequence[int]) -> int:
    order = schedule.order_of(rank)
    if any(action.kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT) for action in order):
        return 0
    return min((tail[action.stage] for action in order if action.kind is Kind.BACKWARD), default=0)
