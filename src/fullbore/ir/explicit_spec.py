"""The spec of a schedule with explicit sends and receives. Its compute part obeys `fullbore.ir.validate`.

What fullbore lowers itself obeys a narrower one (`fullbore.ir.program_spec`: a send right after its action). Files of
others may send later and receive earlier; what they may not do is listed here. Linear in the number of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from fullbore.ids import Rank
from fullbore.ir.action import Compute, Message
from fullbore.ir.explicit import ExplicitSchedule, RecvCell, SendCell, Transfer, recv_of, send_of
from fullbore.ir.flow import consumer_of, made_by, needed_by
from fullbore.ir.problem import Problem, raise_problems
from fullbore.ir.validate import problems

__all__ = ["ExplicitRule", "check_explicit", "explicit_problems"]


class ExplicitRule(StrEnum):
    """The rules of explicit sends and receives. ``reason`` says why each one stands."""

    KNOWN_BOUNDARY = "known-boundary"
    OWN_TRANSFER = "own-transfer"
    PAIRED = "paired"
    SENT_AFTER_MADE = "sent-after-made"
    RECEIVED_BEFORE_USE = "received-before-use"
    LANE_ORDER = "lane-order"

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS = {
    ExplicitRule.KNOWN_BOUNDARY: "a message crosses from a stage to its neighbour on another rank, nothing else",
    ExplicitRule.OWN_TRANSFER: "only the rank that holds a stage can send its output and use what it receives",
    ExplicitRule.PAIRED: "a send without its receive, or the reverse, waits for ever; two take each other's place",
    ExplicitRule.SENT_AFTER_MADE: "a message exists only after the action that makes it",
    ExplicitRule.RECEIVED_BEFORE_USE: "an action starts only after what it needs from another rank has arrived",
    ExplicitRule.LANE_ORDER: "messages between two ranks carry no tag, so the order alone tells them apart",
}

_Places = dict[Message, list[tuple[Rank, int, Transfer]]]


def check_explicit(schedule: ExplicitSchedule) -> None:
    """Raise `InvalidSchedule` unless every rule holds."""
    raise_problems(explicit_problems(schedule), schedule=schedule)


def explicit_problems(
    schedule: ExplicitSchedule, *, most_in_flight: Sequence[int] | None = None
) -> tuple[Problem, ...]:
    """Every violated rule. Communication is checked once the compute part is valid, its order once all is paired.

    ``most_in_flight`` as in `fullbore.ir.validate.problems`.
    """
    computed = problems(schedule.compute_part(), most_in_flight=most_in_flight)
    if computed:
        return tuple(_replaced(problem, schedule) for problem in computed)
    sends: _Places = {}
    receives: _Places = {}
    found = [*_rows(schedule, sends, receives), *_pairs(schedule, sends, receives)]
    if not found:
        found.extend(_lanes(schedule))
    ranking = list(ExplicitRule)
    return tuple(sorted(found, key=lambda problem: ranking.index(ExplicitRule(problem.rule))))


def _replaced(problem: Problem, schedule: ExplicitSchedule) -> Problem:
    """A place in the compute part, as a place in the row."""
    if problem.rank is None or problem.position is None:
        return problem
    places = [place for place, cell in enumerate(schedule.orders[problem.rank]) if isinstance(cell, Compute)]
    return Problem(problem.rule, problem.rank, places[problem.position], problem.action, problem.message)


def _rows(schedule: ExplicitSchedule, sends: _Places, receives: _Places) -> Iterator[Problem]:
    """The rules that one row shows; fills in where each message is sent and received."""
    route, rank_of = schedule.placement, schedule.placement.rank_of
    for rank, row in enumerate(schedule.orders):
        made: set[Message] = set()
        arrived: set[Message] = set()
        for position, cell in enumerate(row):
            here = (Rank(rank), position, cell)
            if isinstance(cell, Compute):
                needed, output = needed_by(cell, route), made_by(cell, route)
                if needed is not None and rank_of(needed.stage) != rank and needed not in arrived:
                    text = f"{cell} on rank {rank} has no {recv_of(needed, route)} before it"
                    yield Problem(ExplicitRule.RECEIVED_BEFORE_USE, *here, text)
                if output is not None:
                    made.add(output)
                continue
            message = _crossing(cell, schedule)
            if message is None:
                text = f"{cell} on rank {rank}: no message goes that way between two ranks"
                yield Problem(ExplicitRule.KNOWN_BOUNDARY, *here, text)
            elif rank_of(cell.stage) != rank:
                text = f"{cell} on rank {rank}: rank {rank_of(cell.stage)} holds stage {cell.stage}"
                yield Problem(ExplicitRule.OWN_TRANSFER, *here, text)
            elif isinstance(cell, SendCell):
                sends.setdefault(message, []).append((Rank(rank), position, cell))
                if message not in made:
                    text = f"{cell} on rank {rank} comes before the action that makes it"
                    yield Problem(ExplicitRule.SENT_AFTER_MADE, *here, text)
            else:
                receives.setdefault(message, []).append((Rank(rank), position, cell))
                arrived.add(message)


def _crossing(cell: Transfer, schedule: ExplicitSchedule) -> Message | None:
    """The message of a cell, if it goes from one rank to another."""
    if cell.stage >= schedule.num_stages or cell.microbatch >= schedule.num_microbatches:
        return None
    message = cell.message(schedule.placement)
    if message is None:
        return None
    rank_of = schedule.placement.rank_of
    crosses = rank_of(message.stage) != rank_of(consumer_of(message, schedule.placement))
    return message if crosses else None


def _pairs(schedule: ExplicitSchedule, sends: _Places, receives: _Places) -> Iterator[Problem]:
    """Every message that the compute part needs is sent once and received once, and no other is."""
    route, rank_of = schedule.placement, schedule.placement.rank_of
    needed = (needed_by(cell, route) for row in schedule.orders for cell in row if isinstance(cell, Compute))
    crossing = [one for one in needed if one is not None and rank_of(one.stage) != rank_of(consumer_of(one, route))]
    for message in dict.fromkeys([*crossing, *sends, *receives]):
        wanted: list[tuple[Transfer, _Places]] = [(send_of(message), sends), (recv_of(message, route), receives)]
        for cell, places in wanted:
            there = places.get(message, [])
            if not there:
                owner = rank_of(cell.stage)
                yield Problem(ExplicitRule.PAIRED, owner, None, cell, f"{cell} is missing on rank {owner}")
            for rank, position, again in there[1:]:
                yield Problem(
                    ExplicitRule.PAIRED, rank, position, again, f"{again} on rank {rank} is there {len(there)} times"
                )


def _lanes(schedule: ExplicitSchedule) -> Iterator[Problem]:
    """From one rank to another, receives stand in the order of the sends. Both payloads share that order: PyTorch has
    one communicator for them."""
    route, rank_of = schedule.placement, schedule.placement.rank_of
    sent: dict[tuple[Rank, Rank], list[Message]] = {}
    received: dict[tuple[Rank, Rank], list[tuple[int, RecvCell, Message]]] = {}
    for row in schedule.orders:
        for position, cell in enumerate(row):
            if isinstance(cell, Compute):
                continue
            message = cell.message(route)
            assert message is not None, "rows are checked before lanes"
            ends = (rank_of(message.stage), rank_of(consumer_of(message, route)))
            if isinstance(cell, SendCell):
                sent.setdefault(ends, []).append(message)
            else:
                received.setdefault(ends, []).append((position, cell, message))
    for (sender, receiver), taken in received.items():
        for (position, cell, message), given in zip(taken, sent[sender, receiver], strict=True):
            if message != given:
                text = f"{cell} on rank {receiver} stands where rank {sender} has {send_of(given)} as its next send"
                yield Problem(ExplicitRule.LANE_ORDER, receiver, position, cell, text)
                break
