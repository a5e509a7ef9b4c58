"""Lowering: from what a schedule computes to a program that also says what is sent, received and how far ahead.

Every `Compute` is preceded by the `Recv` it needs from another rank and followed by the `Send` it causes:

    1F0 on rank 1 of 3   ->   Recv(activation of stage 0, mb 0)  1F0  Send(activation of stage 1, mb 0)

Stages of the same rank hand over locally, without a message. A lane carries the messages of one (sender, receiver,
payload) in the *sender's* program order, and the receiver posts its receives in that order, so shapes never decide
which message is which. Where the receiver consumes in another order than the sender sends (placements in V shape),
the wanted message may lie behind others: the lane's depth says how many receives must be posted for it to arrive.

    depth = max over the receiver's waits of (index of the wanted message - messages consumed so far + 1)
            + prefetch - 1, and at most the number of messages
"""

from __future__ import annotations

from fullbore.errors import ScheduleError
from fullbore.ids import Rank
from fullbore.ir.action import Instruction, Message, Payload, Recv, Send
from fullbore.ir.flow import consumer_of, made_by, needed_by
from fullbore.ir.program import Lane, Program
from fullbore.ir.program_spec import required_depth
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import validate

__all__ = ["lower"]


def lower(schedule: Schedule, *, prefetch: int = 2) -> Program:
    """Add communication. The compute order of every rank stays as it is. Linear in the number of actions.

    Args:
        schedule: a valid schedule; its rules are checked first.
        prefetch: how many receives each lane keeps posted where the order alone would need one.
    """
    if prefetch < 1:
        raise ScheduleError(f"prefetch must be at least 1 receive (prefetch={prefetch})")
    validate(schedule)
    sent = _messages_sent(schedule)
    keys = sorted(sent, key=lambda key: (key[0], key[1], list(Payload).index(key[2])))
    lane_of = {key: lane for lane, key in enumerate(keys)}
    route, rank_of = schedule.placement, schedule.placement.rank_of
    programs: list[tuple[Instruction, ...]] = []
    consumed: list[list[Message]] = [[] for _ in keys]
    for rank, order in enumerate(schedule.orders):
        instructions: list[Instruction] = []
        for action in order:
            needed = needed_by(action, route)
            if needed is not None and rank_of(needed.stage) != rank:
                lane = lane_of[rank_of(needed.stage), Rank(rank), needed.payload]
                consumed[lane].append(needed)
                instructions.append(Recv(needed, lane))
            instructions.append(action)
            made = made_by(action, route)
            if made is not None and (receiver := rank_of(consumer_of(made, route))) != rank:
                instructions.append(Send(made, lane_of[Rank(rank), receiver, made.payload]))
        programs.append(tuple(instructions))
    lanes = []
    for key, wanted in zip(keys, consumed, strict=True):
        messages = tuple(sent[key])
        depth = min(len(messages), required_depth(messages, wanted) + prefetch - 1)
        lanes.append(Lane(*key, messages=messages, depth=depth))
    return Program(schedule.placement, schedule.num_microbatches, tuple(programs), tuple(lanes), schedule.num_slices)


def _messages_sent(schedule: Schedule) -> dict[tuple[Rank, Rank, Payload], list[Message]]:
    """The messages of every lane, in the sender's order."""
    sent: dict[tuple[Rank, Rank, Payload], list[Message]] = {}
    for rank, order in enumerate(schedule.orders):
        for action in order:
            made = made_by(action, schedule.placement)
            if made is None:
                continue
            receiver = schedule.placement.rank_of(consumer_of(made, schedule.placement))
            if receiver != rank:
                sent.setdefault((Rank(rank), receiver, made.payload), []).append(made)
    return sent
