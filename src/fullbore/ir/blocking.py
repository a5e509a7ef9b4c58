"""Blocking: is a schedule with explicit sends and receives free of wait cycles under rendezvous?

The strictest rules there are: each rank executes its row strictly in order, a send completes only when it is received,
and a receive only when it is sent. A schedule that is free of cycles here runs on any transport. One that is not may
still run where sends are buffered or overlapped: fullbore's lanes (`fullbore.ir.program`) never block a sender.

Plain 1F1B, lowered with each receive right before its use, has such cycles for p >= 2 and m >= 2. p = 2:

    rank 0   0F0  0SEND_F0  0F1      [0SEND_F1]  0RECV_B0  0B0 ...
    rank 1   1RECV_F0  1F0  1B0      [1SEND_B0]  1RECV_F1  1F1 ...

Each rank offers a message while the other one offers too. GPipe has none. `fullbore.ir.torch_lower` places receives so
that no schedule has any.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.explicit import Cell, ExplicitSchedule, RecvCell, SendCell, Transfer, recv_of, send_of
from fullbore.ir.flow import consumer_of
from fullbore.ir.problem import Problem

__all__ = ["Blocked", "BlockingRule", "blocking_problems", "wait_cycles"]


class BlockingRule(StrEnum):
    """The one rule of this file, as the others have theirs."""

    NO_WAIT_CYCLE = "no-wait-cycle"

    @property
    def reason(self) -> str:
        return "where a send blocks until it is received, ranks that wait for each other in a cycle never finish"


@dataclass(frozen=True, slots=True)
class Blocked:
    """A rank that cannot go on: the send or receive it stands at, the one it waits for, and what is before that."""

    rank: Rank
    position: int
    cell: Transfer
    waits_for: Transfer
    partner: Rank
    partner_at: Cell | None
    """Where the partner stands; None if it has come to its end."""

    def __str__(self) -> str:
        ahead = "has ended" if self.partner_at is None else f"stands before at {self.partner_at}"
        return f"rank {self.rank} at {self.cell} waits for {self.waits_for} of rank {self.partner}, which {ahead}"


def blocking_problems(schedule: ExplicitSchedule) -> tuple[Problem, ...]:
    """One problem for each wait cycle. Assumes that the rules of `fullbore.ir.explicit_spec` hold."""
    found = []
    for cycle in wait_cycles(schedule):
        first = cycle[0]
        text = "; ".join(map(str, cycle))
        text = f"{text}: none of them can ever complete"
        found.append(Problem(BlockingRule.NO_WAIT_CYCLE, first.rank, first.position, first.cell, text))
    return tuple(found)


def wait_cycles(schedule: ExplicitSchedule) -> tuple[tuple[Blocked, ...], ...]:
    """Every cycle of ranks that wait for each other; each starts at its lowest rank. Linear in the number of cells."""
    at = _run(schedule)
    blocked = {
        rank: _blocked(schedule, rank, at)
        for rank in map(Rank, range(schedule.num_ranks))
        if at[rank] < len(schedule.orders[rank])
    }
    cycles: list[tuple[Blocked, ...]] = []
    visited: set[Rank] = set()
    for start in blocked:
        path: list[Rank] = []
        rank = start
        while rank in blocked and rank not in visited:
            visited.add(rank)
            path.append(rank)
            rank = blocked[rank].partner
        if rank in path:
            cycle = path[path.index(rank) :]
            first = cycle.index(min(cycle))
            cycles.append(tuple(blocked[one] for one in (*cycle[first:], *cycle[:first])))
    return tuple(cycles)


def _run(schedule: ExplicitSchedule) -> list[int]:
    """How far each rank comes: computations pass, a send and its receive pass together."""
    at = [0] * schedule.num_ranks
    ready = deque(map(Rank, range(schedule.num_ranks)))
    while ready:
        rank = ready.popleft()
        row = schedule.orders[rank]
        while at[rank] < len(row):
            cell = row[at[rank]]
            if not isinstance(cell, Compute):
                partner, wanted = _other_end(cell, schedule)
                theirs = schedule.orders[partner]
                if at[partner] == len(theirs) or theirs[at[partner]] != wanted:
                    break
                at[partner] += 1
                ready.append(partner)
            at[rank] += 1
    return at


def _blocked(schedule: ExplicitSchedule, rank: Rank, at: list[int]) -> Blocked:
    cell = schedule.orders[rank][at[rank]]
    assert isinstance(cell, SendCell | RecvCell), "only communication blocks"
    partner, wanted = _other_end(cell, schedule)
    theirs = schedule.orders[partner]
    return Blocked(rank, at[rank], cell, wanted, partner, theirs[at[partner]] if at[partner] < len(theirs) else None)


def _other_end(cell: Transfer, schedule: ExplicitSchedule) -> tuple[Rank, Transfer]:
    """The rank at the other end of a message and the cell that completes it."""
    route, rank_of = schedule.placement, schedule.placement.rank_of
    message = cell.message(route)
    assert message is not None, "a cell without a message breaks the rule known-boundary"
    if isinstance(cell, SendCell):
        return rank_of(consumer_of(message, route)), recv_of(message, route)
    return rank_of(message.stage), send_of(message)
