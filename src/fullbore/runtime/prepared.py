"""Prepared: one rank's program with everything looked up that does not change from step to step.

Between a message's arrival and the start of the action that waits for it, and between an action's end and its send,
other ranks wait. So the executor finds here, ready made, what it would otherwise work out in between, once an action:
the engine to call, the place of what the action needs and makes, the words for its failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fullbore.ids import StageIndex
from fullbore.ir.action import Compute, Message, Recv, Send
from fullbore.ir.flow import made_by, needed_by
from fullbore.ir.program import Lane, Program
from fullbore.runtime.engine import StageEngine

__all__ = ["Await", "Hand", "Prepared", "Run", "prepare"]


@dataclass(frozen=True, slots=True)
class Await:
    """Until a message has arrived."""

    message: Message
    lane: int
    place: int
    """Of the message in its lane."""

    slot: int
    """Where it is held until its action takes it."""

    cause: Compute
    doing: str


@dataclass(frozen=True, slots=True)
class Run:
    """Have an engine compute."""

    action: Compute
    engine: StageEngine
    needs: int | None
    """The slot of what it takes; None: nothing from another stage."""

    makes: int | None
    doing: str


@dataclass(frozen=True, slots=True)
class Hand:
    """Start sending a message."""

    message: Message
    lane: Lane
    slot: int


Instruction = Await | Run | Hand


@dataclass(frozen=True, slots=True)
class Prepared:
    """One rank's instructions. Messages that are under way or held have a slot each."""

    instructions: tuple[Instruction, ...]
    num_slots: int
    hands: tuple[Hand, ...]
    """The sends alone, in order."""


def prepare(program: Program, *, rank: int, engines: Mapping[StageIndex, StageEngine]) -> Prepared:
    """Look everything up. Linear in the number of instructions."""
    slots: dict[Message, int] = {}
    places = {message: place for lane in program.lanes for place, message in enumerate(lane.messages)}

    def slot(message: Message) -> int:
        return slots.setdefault(message, len(slots))

    given = program.instructions[rank]
    causes = _next_computes(given)
    made: list[Instruction] = []
    for instruction, cause in zip(given, causes, strict=True):
        match instruction:
            case Recv(message, lane):
                made.append(Await(message, lane, places[message], slot(message), cause, str(cause)))
            case Compute():
                needed = needed_by(instruction, program.placement)
                makes = made_by(instruction, program.placement)
                made.append(
                    Run(
                        instruction,
                        engines[instruction.stage],
                        needs=None if needed is None else slot(needed),
                        makes=None if makes is None else slot(makes),
                        doing=str(instruction),
                    )
                )
            case Send(message, lane):
                made.append(Hand(message, program.lanes[lane], slot(message)))
    return Prepared(tuple(made), len(slots), tuple(one for one in made if isinstance(one, Hand)))


def _next_computes(instructions: tuple[Compute | Send | Recv, ...]) -> tuple[Compute, ...]:
    """For every instruction the compute action it serves: the next one, or for a trailing send the last one."""
    following = next(i for i in reversed(instructions) if isinstance(i, Compute))
    causes: list[Compute] = []
    for instruction in reversed(instructions):
        if isinstance(instruction, Compute):
            following = instruction
        causes.append(following)
    return tuple(reversed(causes))
