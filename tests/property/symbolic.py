"""A symbolic run of a lowered program under NCCL's rules, with sets of microbatches in place of tensors.

An activation is the stages it went through and its microbatches; a weight gradient is a count of microbatches (of their
slices, where there are any: then each counts as often as it has slices). A lane
is first in first out and has no tags: the receiver posts receives in the lane's order, at most ``depth`` ahead of what
it has consumed, and each takes whatever was sent at that place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fullbore.ir.action import Compute, Kind, Message, Recv, Send
from fullbore.ir.flow import made_by, needed_by
from fullbore.ir.program import Program

Value = tuple[tuple[int, ...], frozenset[int]]
"""Stages passed through, in order, and the microbatches in it."""


@dataclass
class Outcome:
    weight_gradients: list[Counter[int]]
    """For each stage: how many times each microbatch was counted."""

    stalled: list[int] = field(default_factory=list)
    """Ranks that did not finish."""

    left_over: int = 0
    """Messages sent and never consumed."""


def run(program: Program) -> Outcome:
    num_stages = program.placement.num_stages
    outcome = Outcome([Counter() for _ in range(num_stages)])
    at = [0] * program.num_ranks
    sent: list[list[Value]] = [[] for _ in program.lanes]
    consumed = [0] * len(program.lanes)
    held: list[dict[Message, Value]] = [{} for _ in range(program.num_ranks)]
    kept: dict[tuple[int, int, int | None], Value] = {}
    half_done: dict[tuple[int, int, int | None], frozenset[int]] = {}

    def compute(rank: int, action: Compute) -> None:
        stage, mb, cut = action.stage, action.microbatch, action.slice_index
        needed, made = needed_by(action, program.placement), made_by(action, program.placement)
        stream = next(one for one in program.placement.streams if stage in one)
        match action.kind:
            case Kind.FORWARD:
                before: Value = ((), frozenset({mb}))
                if needed is not None:
                    before = held[rank].pop(needed)
                after = ((*before[0], int(stage)), before[1])
                assert after == (stream[: stream.index(stage) + 1], frozenset({mb})), f"{action} computed on {before}"
                kept[stage, mb, cut] = after
                if made is not None:
                    give(rank, made, after)
            case Kind.BACKWARD | Kind.BACKWARD_INPUT:
                gradient: Value = ((), frozenset({mb}))
                if needed is not None:
                    gradient = held[rank].pop(needed)
                behind = stream[stream.index(stage) + 1 :][::-1]
                assert gradient == (behind, frozenset({mb})), f"{action}: {gradient}"
                if made is not None:
                    give(rank, made, ((*gradient[0], int(stage)), gradient[1]))
                counted = kept.pop((stage, mb, cut))[1] & gradient[1]
                if action.kind is Kind.BACKWARD:
                    outcome.weight_gradients[stage].update(counted)
                else:
                    half_done[stage, mb, cut] = counted
            case Kind.BACKWARD_WEIGHT:
                outcome.weight_gradients[stage].update(half_done.pop((stage, mb, cut)))

    def give(rank: int, message: Message, value: Value) -> None:
        held[rank][message] = value  # a local consumer takes it from here; a Send takes it from here too

    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(program.instructions):
            while at[rank] < len(instructions):
                match instructions[at[rank]]:
                    case Compute() as action:
                        compute(rank, action)
                    case Send(message, lane):
                        sent[lane].append(held[rank].pop(message))
                    case Recv(message, lane):
                        place = program.lanes[lane].messages.index(message)
                        posted = consumed[lane] + program.lanes[lane].depth
                        if place >= min(posted, len(sent[lane])):
                            break
                        held[rank][message] = sent[lane][place]
                        consumed[lane] += 1
                at[rank] += 1
                moved = True
    outcome.stalled = [rank for rank, order in enumerate(program.instructions) if at[rank] < len(order)]
    outcome.left_over = sum(map(len, sent)) - sum(consumed) + sum(map(len, held)) + len(kept) + len(half_done)
    return outcome
