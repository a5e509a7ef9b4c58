"""Flow: which action waits for what, and in which order a schedule can run at all. Written once, used by everyone.

Two things make an action wait: its rank (one action at a time, in the rank's order) and its data.

    F of stage s   the activation of the stage before it             (first stage: nothing)
    B or I         the gradient of the stage after it, and its own F (last stage: its own F only)
    W              its own I
    R              its own F

Where sequences are cut into slices, a slice reads what the ones before it left (keys and values), so its F comes after
the F of the slice before it on the same stage, and its B or I after that of the slice behind it.

Which stage is before and after, a `Route` says: a placement, whose streams may run in either direction.

`flow` walks all ranks at once and takes every action that has its data, so its result is a topological order of
rank orders and data together. What it cannot take is stuck, and it says on what. Linear in the number of actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from fullbore.ids import Rank, SliceIndex, StageIndex
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
        return None if source is None else Message(Payload.ACTIVATION, source, action.microbatch, action.slice_index)
    if action.kind.makes_input_gradient:
        source = route.next_stage(action.stage)
        return None if source is None else Message(Payload.GRADIENT, source, action.microbatch, action.slice_index)
    return None


def made_by(action: Compute, route: Route) -> Message | None:
    """What the action makes for a neighbouring stage."""
    if action.kind is Kind.FORWARD and route.next_stage(action.stage) is not None:
        return Message(Payload.ACTIVATION, action.stage, action.microbatch, action.slice_index)
    if action.kind.makes_input_gradient and route.previous_stage(action.stage) is not None:
        return Message(Payload.GRADIENT, action.stage, action.microbatch, action.slice_index)
    return None


def consumer_of(message: Message, route: Route) -> StageIndex:
    """The stage that needs it."""
    forward = message.payload is Payload.ACTIVATION
    stage = route.next_stage(message.stage) if forward else route.previous_stage(message.stage)
    assert stage is not None, f"nobody needs the {message}"
    return stage


def own_input(action: Compute, *, num_slices: int = 1) -> Compute | None:
    """The action of the same stage and microbatch that must come first."""
    match action.kind:
        case Kind.FORWARD:
            return _slice(action, -1, num_slices=num_slices)
        case Kind.BACKWARD_WEIGHT:
            return action.of_kind(Kind.BACKWARD_INPUT)
        case Kind.RECOMPUTE:
            return action.of_kind(Kind.FORWARD)
        case Kind.BACKWARD | Kind.BACKWARD_INPUT:
            return _slice(action, 1, num_slices=num_slices) or action.of_kind(Kind.FORWARD)


def _slice(action: Compute, step: int, *, num_slices: int) -> Compute | None:
    """The same for the neighbouring slice; None where there is none."""
    if action.slice_index is None or not 0 <= action.slice_index + step < num_slices:
        return None
    return Compute(action.stage, action.kind, action.microbatch, SliceIndex(action.slice_index + step))


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


def flow(schedule: Schedule, *, together: Mapping[Compute, Compute] = MappingProxyType({})) -> Flow:
    """Walk all ranks at once. ``stuck`` is empty exactly if rank orders and data have no cycle and no gap.

    Args:
        together: for an action the one right after it that must have its data too before either starts.
    """
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
            if (needed is None or needed in made) and action in together:
                needed = needed_by(together[action], route)
            if needed is not None and needed not in made:
                asleep.setdefault(needed, []).append(rank)
                break
            first = own_input(action, num_slices=schedule.num_slices)
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
            if (wanted is None or wanted in made) and action in together:
                wanted = needed_by(together[action], route)
            if wanted is None or wanted in made:
                wanted = own_input(action, num_slices=schedule.num_slices)
            assert wanted is not None, "a rank stopped without a reason"
            stuck.append(Stuck(Rank(rank), position[rank], action, wanted))
    return Flow(tuple(steps), tuple(stuck))


def _wanted(wanted: Message | Compute) -> str:
    return f"the {wanted}" if isinstance(wanted, Message) else str(wanted)
