"""Simulate: when every action of a schedule starts and ends, for given stage costs and links.

    start = max(end of the rank's previous action, arrival of the input)
    arrival = end of the producer + delay of the link if the boundary crosses ranks, + 0 on the same rank

Two actions that may run at once (`fullbore.ir.schedule.Overlap`) start when the data of both is there, take the time of
both, and send when both are done: what is hidden is the transfer, not the work.

A sender is never blocked. All times are integers and the order of every rank is fixed, so one pass in flow order gives
every time exactly, without an event queue: linear in the number of actions. `fullbore.simulate.compiled` gives the same
times faster where one schedule is simulated for many costs; this is what it is held against.
"""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.costs.delays import boundary_delays, require_costs
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import InvalidSchedule
from fullbore.ir.action import Message
from fullbore.ir.flow import consumer_of, flow, made_by, needed_by
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import Rule
from fullbore.timeline.span import Activity, Row, Span, Timeline

__all__ = ["simulate"]


def simulate(
    schedule: Schedule,
    *,
    costs: Sequence[StageCost],
    links: Sequence[Link] = (),
    message_bytes: Sequence[int] | int = 0,
) -> Timeline:
    """A COMPUTE span for every action, a WAIT span wherever a rank idles between two of its actions for input.

    Args:
        schedule: any; its rules are not checked here, but one that stalls is refused.
        costs: one for each stage.
        links: one for each boundary s|s+1 (none: all free); used only where the boundary joins different ranks.
        message_bytes: what crosses a boundary, one number for all or one for each boundary, both directions alike.

    Raises:
        InvalidSchedule: some action can never start; names each stuck action and what it waits for.
        CostsError: not one cost a stage, or not one link or size a boundary.
    """
    placement = schedule.placement
    require_costs(costs, num_stages=schedule.num_stages)
    delays = boundary_delays(placement, links=links, message_bytes=message_bytes)
    together = {pair.forward: pair.backward for pair in schedule.overlaps}
    owed: Message | None = None
    walk = flow(schedule, together=together)
    if walk.stuck:
        text = "; ".join(map(str, walk.stuck))
        raise InvalidSchedule(f"schedule {schedule.name!r} stalls: {text}", rules=(Rule.NO_CYCLE.value,))
    arrival: dict[Message, int] = {}
    free_at: list[int | None] = [None] * schedule.num_ranks
    spans: list[Span] = []
    for step in walk.steps:
        action, rank = step.action, step.rank
        needed = needed_by(action, placement)
        ready = arrival[needed] if needed is not None else 0
        partner = needed_by(together[action], placement) if action in together else None
        if partner is not None:
            ready = max(ready, arrival[partner])
        idle_since = free_at[rank]
        start = ready if idle_since is None else max(idle_since, ready)
        if idle_since is not None and start > idle_since:
            spans.append(Span(rank, Row.WAIT, action, Activity.RECV_WAIT, idle_since, start))
        end = start + costs[action.stage].of(action.kind)
        spans.append(Span(rank, Row.COMPUTE, action, None, start, end))
        free_at[rank] = end
        made = made_by(action, placement)
        if action in together:
            owed = made
            continue
        for message in filter(None, (owed, made)):
            arrival[message] = end + delays[min(message.stage, consumer_of(message, placement))]
        owed = None
    return Timeline.of(spans, num_ranks=schedule.num_ranks)
