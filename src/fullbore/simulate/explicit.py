"""Simulate a schedule whose sends and receives stand in its rows, each receive blocking the rank where it stands.

A receive that stands right before its use costs nothing: what waits would have waited anyway. One that stands earlier
holds up whatever is between it and its use, although that could run. So a file's own order of communication may add
idle time to a schedule that has none: the difference to `fullbore.simulate.engine` for its compute part is that time.

    0RECV_B0 0F2 0B0      rank 0 waits for the gradient before 0F2, which needs nothing of it

A sender is never blocked, as everywhere here. Linear in the number of cells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fullbore.costs.delays import boundary_delays, require_costs
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import InvalidSchedule
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Message
from fullbore.ir.explicit import ExplicitSchedule, RecvCell, SendCell
from fullbore.ir.explicit_spec import ExplicitRule
from fullbore.ir.flow import consumer_of
from fullbore.timeline.span import Activity, Row, Span, Timeline

__all__ = ["simulate_explicit"]


def simulate_explicit(
    schedule: ExplicitSchedule,
    *,
    costs: Sequence[StageCost],
    links: Sequence[Link] = (),
    message_bytes: Sequence[int] | int = 0,
) -> Timeline:
    """A COMPUTE span for every action, and a WAIT span before the first action after a receive that had to wait.

    Args:
        schedule: one that keeps the rules of `fullbore.ir.explicit_spec`.
        costs, links, message_bytes: as in `fullbore.simulate.engine.simulate`.

    Raises:
        InvalidSchedule: some receive waits for a send that never comes.
        CostsError: not one cost a stage, or not one link or size a boundary.
    """
    route = schedule.placement
    require_costs(costs, num_stages=schedule.num_stages)
    delays = boundary_delays(route, links=links, message_bytes=message_bytes)
    arrival: dict[Message, int] = {}
    asleep: dict[Message, int] = {}
    at = [0] * schedule.num_ranks
    now = [0] * schedule.num_ranks
    last_end: list[int | None] = [None] * schedule.num_ranks
    spans: list[Span] = []
    ready = deque(range(schedule.num_ranks))
    while ready:
        rank = ready.popleft()
        row = schedule.orders[rank]
        while at[rank] < len(row):
            cell = row[at[rank]]
            if isinstance(cell, Compute):
                since, start = last_end[rank], now[rank]
                if since is not None and start > since:
                    spans.append(Span(Rank(rank), Row.WAIT, cell, Activity.RECV_WAIT, since, start))
                now[rank] = last_end[rank] = start + costs[cell.stage].of(cell.kind)
                spans.append(Span(Rank(rank), Row.COMPUTE, cell, None, start, now[rank]))
            else:
                message = cell.message(route)
                assert message is not None, "the rules are checked before"
                if isinstance(cell, SendCell):
                    arrival[message] = now[rank] + delays[min(message.stage, consumer_of(message, route))]
                    if message in asleep:
                        ready.append(asleep.pop(message))
                elif message in arrival:
                    now[rank] = max(now[rank], arrival[message])
                else:
                    asleep[message] = rank
                    break
            at[rank] += 1
    stuck = [row[place] for row, place in zip(schedule.orders, at, strict=True) if place < len(row)]
    if stuck:
        waits = "; ".join(f"{cell} is never sent" for cell in stuck if isinstance(cell, RecvCell))
        raise InvalidSchedule(f"schedule {schedule.name!r} stalls: {waits}", rules=(ExplicitRule.PAIRED.value,))
    return Timeline.of(spans, num_ranks=schedule.num_ranks)
