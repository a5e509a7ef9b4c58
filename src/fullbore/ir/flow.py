"""Flow: which action waits for what, and in which order a schedule can run at all. Written once, used by everyone.

Two things make an action wait: its rank (one action at a time, in the rank's order) and its data.

    F of stage s   the activation of the stage before it             (first stage: nothing)
    B or I         the gradient of the stage after it, and its own F (last stage: its own F only)
    W              its own I
    R              its own F

Which stage is before and after, a `Route` says: a placement, whose streams may run in either direction
(`needed_by`, `made_by`, `consumer_of`), or just a number of stages in a row (`message_needed`, `message_made`).

`flow` walks all ranks at once and takes every action that has its data, so its result is a topological order of
rank orders and data together. What it cannot take is stuck, and it says on what. Linear in the number of actions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Compute, Kind, Message, Payload
from fullbore.ir.schedule import Schedule

__all__ = [
    "Flow",
    "Route",
    "Step",
    "Stuck",
    "consumer_of",
    "flow",
    "made_by",
    "message_made",
    "message_needed",
    "needed_by",
    "own_input",
]


class Route(Protocol):
    """Who follows whom. `fullbore.ir.placement.Placement` is one."""

    def next_stage(self, stage: StageIndex, /) -> StageIndex | None: ...

    def previous_stage(self, stage: StageIndex, /) -> StageIndex | None: ...


def needed_by(action: Compute, route: Route) -> Message | None:
    """What a neighbouring stage must have made before the action can start."""
    if action.kind is Kind.FORWARD:
        source = route.previous_stage(action.stage)
        return None if source is None else Message(Payload.ACTIVATION, source, action.microbatch)
    if action.kind.makes_input_gradient:
        source = route.next_stage(action.stage)
        return None if source is None else Message(Payload.GRADIENT, source, action.microbatch)
    return None


def made_by(action: Compute, route: Route) -> Message | None:
    """What the action makes for a neighbouring stage."""
    if action.kind is Kind.FORWARD and route.next_stage(action.stage) is not None:
        return Message(Payload.ACTIVATION, action.stage, action.microbatch)
    if action.kind.makes_input_gradient and route.previous_stage(action.stage) is not None:
        return Message(Payload.GRADIENT, action.stage, action.microbatch)
    return None


def consumer_of(message: Message, route: Route) -> StageIndex:
    """The stage that needs it; `Message.consumer` where the route may have several streams."""
    forward = message.payload is Payload.ACTIVATION
    stage = route.next_stage(message.stage) if forward else route.previous_stage(message.stage)
    assert stage is not None, f"nobody needs the {message}"
    return stage


def message_needed(action: Compute, *, num_stages: int) -> Message | None:
    """`needed_by` where the stages form one stream."""
    return needed_by(action, _Row(num_stages))


def message_made(action: Compute, *, num_stages: int) -> Message | None:
    """`made_by` where the stages form one stream."""
    return made_by(action, _Row(num_stages))


@dataclass(frozen=True, slots=True)
class _Row:
    """The stages of one stream: 0, 1, 2, ..."""

    num_stages: int

    def next_stage(self, stage: StageIndex, /) -> StageIndex | None:
        return StageIndex(stage + 1) if stage < self.num_stages - 1 else None

    def previous_stage(self, stage: StageIndex, /) -> StageIndex | None:
        return StageIndex(stage - 1) if stage > 0 else None


def own_input(action: Compute) -> Compute | None:
    """The action of the same stage and microbatch that must come first."""
    match action.kind:
        case Kind.FORWARD:
            return None
        case Kind.BACKWARD_WEIGHT:
            return Compute(action.stage, Kind.BACKWARD_INPUT, action.microbatch)
        case _:
            return Compute(action.stage, Kind.FORWARD, action.microbatch)


@dataclass(frozen=True, slots=True)
class Step:
    """One action in a possible order of all."""

    rank: Rank
    position: int
    """Place of the action in its rank's order."""

    action: Compute


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rank that cannot go on, the action it stands before, and what that action waits for."""

    rank: Rank
    position: int
    action: Compute
    waits_for: Message | Compute

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.action} waits for {_wanted(self.waits_for)}"


@dataclass(frozen=True, slots=True)
class Flow:
    """An order in which the actions can run, and the ranks that got stuck on the way."""

    steps: tuple[Step, ...]
    stuck: tuple[Stuck, ...]


def flow(schedule: Schedule) -> Flow:
    """Walk all ranks at once. ``stuck`` is empty exactly if rank orders and data have no cycle and no gap."""
    route = schedule.placement
    position = [0] * len(schedule.orders)
    done: set[Compute] = set()
    made: set[Message] = set()
    asleep: dict[Message, list[int]] = {}
    ready = deque(range(len(schedule.orders)))
    steps: list[Step] = []
    while ready:
        rank = ready.popleft()
        order = schedule.orders[rank]
        while position[rank] < len(order):
            action = order[position[rank]]
            needed = needed_by(action, route)
            if needed is not None and needed not in made:
                asleep.setdefault(needed, []).append(rank)
                break
            first = own_input(action)
            if first is not None and first not in done:
                break  # only this rank could run it, and it stands before this one: stuck for good
            steps.append(Step(Rank(rank), position[rank], action))
            position[rank] += 1
            done.add(action)
            output = made_by(action, route)
            if output is not None and output not in made:
                made.add(output)
                ready.extend(asleep.pop(output, ()))
    stuck: list[Stuck] = []
    for rank, order in enumerate(schedule.orders):
        if position[rank] < len(order):
            action = order[position[rank]]
            wanted: Message | Compute | None = needed_by(action, route)
            if wanted is None or wanted in made:
                wanted = own_input(action)
            assert wanted is not None, "a rank stopped without a reason"
            stuck.append(Stuck(Rank(rank), position[rank], action, wanted))
    return Flow(tuple(steps), tuple(stuck))


def _wanted(wanted: Message | Compute) -> str:
    return f"the {wanted}" if isinstance(wanted, Message) else str(wanted)
