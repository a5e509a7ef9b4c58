"""Wiring: which action of a schedule waits for which, as columns. Used once, when a schedule is compiled.

Every rule that the columns rest on is checked on the way (each action once, on the rank of its stage, after the action
of its own that it needs), so that what compiles is what the exact simulator would run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fullbore.errors import InvalidSchedule
from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.flow import flow
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import Rule

__all__ = ["CODE", "KINDS", "Ints", "levels_of", "pairs_of", "refused", "sources"]

Ints = NDArray[np.int64]

KINDS = tuple(Kind)
CODE = {kind: code for code, kind in enumerate(KINDS)}
"""A kind as a column holds it."""


def pairs_of(schedule: Schedule, edges: Sequence[int]) -> tuple[Ints, Ints]:
    """The nodes of the forwards that run at once with the backward after them, and those of these backwards."""
    joined = {pair.forward for pair in schedule.overlaps}
    first = [
        edge + position
        for edge, order in zip(edges, schedule.orders, strict=False)
        for position, action in enumerate(order)
        if action in joined
    ]
    forward = np.array(first, np.int64)
    return forward, forward + 1


def sources(
    schedule: Schedule, edges: Sequence[int], stage: Ints, kind: Ints, unit: Ints, *, pairs: tuple[Ints, Ints]
) -> tuple[Ints, Ints]:
    """[node] the node whose message it needs, and [node] the boundary that message comes over."""
    placement, num_stages = schedule.placement, schedule.num_stages
    node = np.arange(len(stage))
    if stage.max(initial=-1) >= num_stages:
        raise refused(schedule, Rule.KNOWN_STAGE)
    if unit.max(initial=-1) >= schedule.num_microbatches * schedule.num_slices:
        raise refused(schedule, Rule.KNOWN_MICROBATCH)
    rank = np.repeat(np.arange(len(schedule.orders)), np.diff(edges))
    if (np.array(placement.ranks)[stage] != rank).any():
        raise refused(schedule, Rule.OWN_STAGE)
    found = np.full((len(KINDS), num_stages, schedule.num_microbatches * schedule.num_slices), -1)
    found[kind, stage, unit] = node
    if (found[kind, stage, unit] != node).any():
        raise refused(schedule, Rule.ONCE)
    forward, whole, half = (found[CODE[k]] for k in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT))
    if ((whole >= 0) & (half >= 0)).any():
        raise refused(schedule, Rule.WHOLE_OR_SPLIT)
    makes_forward = kind == CODE[Kind.FORWARD]
    makes_gradient = np.isin(kind, [CODE[k] for k in Kind if k.makes_input_gradient])
    own = np.where(kind == CODE[Kind.BACKWARD_WEIGHT], half[stage, unit], forward[stage, unit])
    if (~makes_forward & ((own < 0) | (own > node))).any():
        raise refused(schedule, Rule.FORWARD_FIRST)
    cut = (-1, schedule.num_slices)
    if not (_in_order(forward.reshape(cut)) and all(_in_order(b.reshape(cut)[:, ::-1]) for b in (whole, half))):
        raise refused(schedule, Rule.SLICES_IN_ORDER)
    sent_by = node.copy()
    sent_by[pairs[0]] = pairs[1]  # what runs at once has its messages when both are done
    source, boundary = np.full(len(node), -1), np.full(len(node), num_stages - 1)
    for makes, neighbour, made in (
        (makes_forward, placement.previous_stage, forward),
        (makes_gradient, placement.next_stage, np.maximum(whole, half)),
    ):
        beside = np.array([_or_none(neighbour(StageIndex(s))) for s in range(num_stages)])
        waits = np.flatnonzero(makes & (beside[stage] >= 0))
        giver = beside[stage[waits]]
        source[waits] = np.where((maker := made[giver, unit[waits]]) < 0, -1, sent_by[maker])
        boundary[waits] = np.minimum(stage[waits], giver)
        if (source[waits] < 0).any():
            raise refused(schedule, Rule.COMPLETE)
    return source, boundary


def _in_order(places: Ints) -> bool:
    """[stage and microbatch, slice] Does each that is there come after the one before it? True where all are whole."""
    before, after = places[:, :-1], places[:, 1:]
    return bool(((after < 0) | ((before >= 0) & (before < after))).all())


def _or_none(stage: StageIndex | None) -> int:
    return -1 if stage is None else stage


def levels_of(source: Ints, kind: Ints, edges: Sequence[int]) -> list[Ints]:
    """The nodes of each level; those that wait in a cycle are in none. A node has at most one consumer of a kind."""
    count = len(source)
    after = np.arange(count) + 1
    after[[edge - 1 for edge in edges if edge > 0]] = -1
    followers = [after]
    forward = kind == CODE[Kind.FORWARD]
    waits = np.flatnonzero(source >= 0)
    shared = len(np.unique(source[waits])) < len(waits)
    for mine in (forward[waits], ~forward[waits]) if shared else (np.ones(len(waits), bool),):
        consumer = np.full(count, -1)
        consumer[source[waits[mine]]] = waits[mine]
        followers.append(consumer)
    waiting = np.ones(count, np.int64)
    waiting[[edge for edge in edges if edge < count]] = 0
    waiting += source >= 0
    levels, ready = [], np.flatnonzero(waiting == 0)
    while ready.size:
        levels.append(ready)
        freed = []
        for follower in followers:
            let = follower[ready]
            let = let[let >= 0]
            waiting[let] -= 1
            freed.append(let[waiting[let] == 0])
        ready = np.concatenate(freed)
    return levels


def refused(schedule: Schedule, rule: Rule) -> InvalidSchedule:
    """A stall is told as the exact simulator tells it; the rest is what `validate` explains."""
    stuck = flow(schedule).stuck
    if stuck:
        text = "; ".join(map(str, stuck))
        return InvalidSchedule(f"schedule {schedule.name!r} stalls: {text}", rules=(Rule.NO_CYCLE.value,))
    return InvalidSchedule(
        f"schedule {schedule.name!r} breaks the rule {rule.value} ({rule.reason}), so it cannot be compiled; "
        "`fullbore schedule check` shows the place",
        rules=(rule.value,),
    )
