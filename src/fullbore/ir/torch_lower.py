"""Lowering as PyTorch does it: sends and receives as cells, each receive posted at the moment its message is sent.

The order is that of ``_add_send_recv`` in torch/distributed/pipelining/schedules.py (2.13): ranks take turns, one
action each; a rank whose next action lacks its input passes; whoever sends writes the receive into the receiver's row.

    rank 0   0F0 0SEND_F0 0F1 0SEND_F1           0RECV_B0 0B0 ...
    rank 1   1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 ...

A pair that may run at once waits for the data of both, and both are sent after it.

Send and receive are written at once, so all rows together have one order in which every pair can meet: the result has
no wait cycle even where sends block (`fullbore.ir.blocking`), and receives between two ranks are in the order of sends.
"""

from __future__ import annotations

from fullbore.ids import Rank
from fullbore.ir.action import Compute, Message
from fullbore.ir.explicit import Cell, ExplicitSchedule, recv_of, send_of
from fullbore.ir.flow import consumer_of, made_by, needed_by
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import validate

__all__ = ["with_transfers"]


def with_transfers(schedule: Schedule) -> ExplicitSchedule:
    """The schedule with its communication. Raises `InvalidSchedule` unless the schedule keeps its own rules."""
    validate(schedule)
    route, rank_of = schedule.placement, schedule.placement.rank_of
    rows: list[list[Cell]] = [[] for _ in schedule.orders]
    together = {pair.forward: pair.backward for pair in schedule.overlaps}
    made: set[Message | None] = set()
    at = [0] * schedule.num_ranks
    waiting = [rank for rank in map(Rank, range(schedule.num_ranks)) if schedule.orders[rank]]
    while waiting:
        for rank in waiting:
            first: Compute = schedule.orders[rank][at[rank]]
            actions = (first, together[first]) if first in together else (first,)
            needed = {needed_by(action, route) for action in actions} - {None}
            if not needed <= made:
                continue
            at[rank] += len(actions)
            rows[rank].extend(actions)
            for output in filter(None, (made_by(action, route) for action in actions)):
                made.add(output)
                receiver = rank_of(consumer_of(output, route))
                if receiver != rank:
                    rows[rank].append(send_of(output))
                    rows[receiver].append(recv_of(output, route))
        waiting = [rank for rank in waiting if at[rank] < len(schedule.orders[rank])]
    cells = tuple(map(tuple, rows))
    return ExplicitSchedule(
        schedule.name,
        schedule.placement,
        schedule.num_microbatches,
        cells,
        schedule.overlaps,
        schedule.num_slices,
    )
