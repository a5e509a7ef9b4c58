"""The spec of a lowered program. Its compute part obeys `fullbore.ir.validate`; this adds the rules of communication.

Checked after lowering, after every pass over programs, and at the runtime's entry. Under NCCL's rules (a lane is
first in first out, a send completes only when received, messages carry no tag) a program that keeps these rules
delivers every message to the action that wants it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from fullbore.ids import Rank
from fullbore.ir.action import Compute, Message, Payload, Recv, Send
from fullbore.ir.flow import consumer_of, made_by, needed_by
from fullbore.ir.problem import Problem, raise_problems
from fullbore.ir.program import Program
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import problems

__all__ = ["ProgramRule", "check_program", "program_problems", "required_depth"]


class ProgramRule(StrEnum):
    """The rules that lowering adds. ``reason`` says why each one stands."""

    KNOWN_LANE = "known-lane"
    RECEIVED_BEFORE_USE = "received-before-use"
    SENT_AFTER_MADE = "sent-after-made"
    LANE_ORDER = "lane-order"
    PAIRED = "paired"
    DEPTH = "depth"

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS = {
    ProgramRule.KNOWN_LANE: "a lane joins exactly the two ranks and the payload of its messages",
    ProgramRule.RECEIVED_BEFORE_USE: "an action starts only after what it needs from another rank has arrived",
    ProgramRule.SENT_AFTER_MADE: "what another rank needs is sent right after the action that makes it",
    ProgramRule.LANE_ORDER: "receives are posted in the order of sending; lanes have no tags to tell messages apart",
    ProgramRule.PAIRED: "a send without its receive, or the reverse, waits for ever",
    ProgramRule.DEPTH: "a wanted message behind others arrives only if receives for those are posted too",
}


def required_depth(messages: Sequence[Message], consumed: Sequence[Message]) -> int:
    """Fewest posted receives with which a receiver that consumes in that order gets every message of a lane."""
    index = {message: place for place, message in enumerate(messages)}
    return max((index[message] - count + 1 for count, message in enumerate(consumed)), default=0)


def check_program(program: Program) -> None:
    """Raise `InvalidSchedule` unless every rule holds."""
    raise_problems(program_problems(program), schedule=_compute_part(program))


def program_problems(program: Program) -> tuple[Problem, ...]:
    """Every violated rule. Communication is checked once the compute part is a valid schedule."""
    found = list(problems(_compute_part(program)))
    if not found:
        found.extend(_instructions(program))
        found.extend(_lanes(program))
    return tuple(found)


def _compute_part(program: Program) -> Schedule:
    orders = tuple(tuple(i for i in rank if isinstance(i, Compute)) for rank in program.instructions)
    return Schedule("lowered", program.placement, program.num_microbatches, orders, program.num_slices)


def _instructions(program: Program) -> Iterator[Problem]:
    route, rank_of = program.placement, program.placement.rank_of
    for rank, instructions in enumerate(program.instructions):
        here = Rank(rank)
        arrived: set[Message] = set()
        owed: Message | None = None
        position = -1
        last: Compute | None = None
        for instruction in (*instructions, None):
            if owed is not None and not (isinstance(instruction, Send) and instruction.message == owed):
                text = f"{last} on rank {rank} is not followed by the send of the {owed}"
                yield Problem(ProgramRule.SENT_AFTER_MADE, here, position if last else None, last, text)
            match instruction:
                case Recv(message, lane) | Send(message, lane):
                    ends = _ends_of(message, program)
                    known = 0 <= lane < len(program.lanes)
                    belongs = known and ends is not None and _ends(program, lane) == (*ends, message.payload)
                    if not belongs or ends is None or ends[isinstance(instruction, Recv)] != rank:
                        text = f"the {message} does not belong on lane {lane} at rank {rank}"
                        yield Problem(ProgramRule.KNOWN_LANE, here, position if last else None, last, text)
                    if isinstance(instruction, Send) and message != owed:
                        text = f"rank {rank} sends the {message} at another place than right after it is made"
                        yield Problem(ProgramRule.SENT_AFTER_MADE, here, position if last else None, last, text)
                    elif isinstance(instruction, Recv):
                        arrived.add(message)
                    owed = None
                case Compute():
                    position, last = position + 1, instruction
                    needed = needed_by(instruction, route)
                    if needed is not None and rank_of(needed.stage) != rank and needed not in arrived:
                        text = f"{instruction} on rank {rank} starts without a receive of the {needed}"
                        yield Problem(ProgramRule.RECEIVED_BEFORE_USE, here, position, instruction, text)
                    made = made_by(instruction, route)
                    crosses = made is not None and rank_of(consumer_of(made, route)) != rank
                    owed = made if crosses else None


def _ends_of(message: Message, program: Program) -> tuple[Rank, Rank] | None:
    """Who makes it and who needs it; None where nobody does."""
    route = program.placement
    beside = route.next_stage if message.payload is Payload.ACTIVATION else route.previous_stage
    if not 0 <= message.stage < route.num_stages or (receiver := beside(message.stage)) is None:
        return None
    return route.rank_of(message.stage), route.rank_of(receiver)


def _ends(program: Program, lane: int) -> tuple[object, ...]:
    held = program.lanes[lane]
    return (held.sender, held.receiver, held.payload)


def _lanes(program: Program) -> Iterator[Problem]:
    sent: dict[int, list[Message]] = {}
    received: dict[int, list[Message]] = {}
    for instructions in program.instructions:
        for instruction in instructions:
            if isinstance(instruction, Send):
                sent.setdefault(instruction.lane, []).append(instruction.message)
            elif isinstance(instruction, Recv):
                received.setdefault(instruction.lane, []).append(instruction.message)
    for index, lane in enumerate(program.lanes):
        out, into = sent.get(index, []), received.get(index, [])
        if tuple(out) != lane.messages:
            text = f"{lane} lists its messages in another order than rank {lane.sender} sends them"
            yield Problem(ProgramRule.LANE_ORDER, lane.sender, None, None, text)
        if len(set(out)) != len(out) or len(set(into)) != len(into) or set(out) != set(into):
            text = f"{lane} sends {len(out)} messages and receives {len(into)}, and they are not the same ones"
            yield Problem(ProgramRule.PAIRED, lane.receiver, None, None, text)
        elif tuple(out) == lane.messages and not required_depth(out, into) <= lane.depth <= len(out):
            text = f"{lane} has depth {lane.depth}, needs {required_depth(out, into)} and has {len(out)} messages"
            yield Problem(ProgramRule.DEPTH, lane.receiver, None, None, text)
