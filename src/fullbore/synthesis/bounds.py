"""Lower bounds on the makespan of any order, proven: how far from the best possible a schedule is at most.

For a rank with stages s1 < s2 < ..., one share of room for each microbatch in flight, and m microbatches:

* load: the way to the rank, then all its work. Before its first backward for the input a rank can only run forwards,
  as many as it has room for; what is left of that time it is idle.
* drain: the way to the rank, its forwards and backwards for the input, and the last one's way back to the first stage.
* memory: an activation is kept at least for a forward, the round trip through the later stages, and a backward. K of
  them fit at once, so m of them take m / K such times (Little's law: John D. C. Little, Operations Research 9 (1961)).
  A cap on memory is a cap on speed.
* one device: `fullbore.synthesis.one_device`, the strongest; its search is limited, so for large instances, and for
  several stages a rank, it may not get beyond the others.

The bounds are for the given stages on the given ranks: another placement has other bounds. A bound for split backwards
also holds for whole ones, which are split ones run back to back; for whole ones alone there is a better one: their
gradient leaves after all of the backward (`of_whole_backwards`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.synthesis.instance import Instance
from fullbore.synthesis.one_device import one_device_bound

__all__ = ["Bound", "best_bound", "bound_of", "of_whole_backwards", "simple_bound"]

_STATES = 12_000
"""Of the one-device search, unless the caller wants more: a third of a second."""

_MOST_CHUNKED = 24
"""Microbatches times stages a rank up to which it is tried for several stages a rank."""


@dataclass(frozen=True, slots=True)
class Bound:
    """No order of this work is faster than this."""

    makespan: int
    name: str
    """What proves it."""

    def gap(self, makespan: int) -> float:
        """How far above the bound a makespan is, as a part of the bound."""
        return makespan / self.makespan - 1 if self.makespan else 0.0


def best_bound(instance: Instance, *, at_most: int, states: int = _STATES) -> Bound:
    """The greatest of all bounds; of equal ones the simplest.

    Args:
        at_most: the makespan of a known schedule.
        states: limit of the one-device search.
    """
    found = simple_bound(instance)
    small = instance.num_stages == instance.num_ranks or (
        instance.num_microbatches * instance.num_stages <= _MOST_CHUNKED * instance.num_ranks
    )
    if found.makespan < at_most and small:
        value = one_device_bound(instance, at_least=found.makespan, at_most=at_most, states=states)
        if value > found.makespan:
            found = Bound(value, "one device")
    return found


def simple_bound(instance: Instance) -> Bound:
    """The greatest of those that need no search; of equal ones the first."""
    return max((_load(instance), _drain(instance), _memory(instance)), key=lambda bound: bound.makespan)


def of_whole_backwards(instance: Instance) -> Instance:
    """The same for orders that run every backward whole: the gradient leaves at the end of all of it."""
    both = zip(instance.backward_input, instance.backward_weight, strict=True)
    nothing = (0,) * instance.num_stages
    return replace(instance, backward_input=tuple(map(sum, both)), backward_weight=nothing, early=0)


def _load(instance: Instance) -> Bound:
    m, best = instance.num_microbatches, 0
    for rank, mine in enumerate(instance.stages):
        work = m * instance.work(rank)
        best = max(best, _head(instance, mine[0]) + work, _idle_first(instance, rank) + work)
    return Bound(best, "load")


def _drain(instance: Instance) -> Bound:
    m, best = instance.num_microbatches, 0
    for rank, mine in enumerate(instance.stages):
        work = m * sum(instance.forward[stage] + instance.backward_input[stage] for stage in mine)
        tail = way = 0
        for stage in range(mine[0] - 1, -1, -1):
            way += instance.delays[stage] + instance.backward_input[stage]
            tail = max(tail, way + instance.backward_weight[stage])
        start = max(_head(instance, mine[0]), _idle_first(instance, rank))
        best = max(best, start + work + max(tail, instance.backward_weight[mine[0]]))
    return Bound(best, "drain")


def _idle_first(instance: Instance, rank: int) -> int:
    """Start of the first backward less all that can have run before it: forwards, as many as there is room for."""
    mine, m, room = instance.stages[rank], instance.num_microbatches, instance.caps[rank] // instance.unit
    turn = mine[-1]  # a microbatch comes back to the last stage first
    lengths = sorted((instance.forward[stage] for stage in mine), reverse=True)
    before = sum(length * min(m, max(0, room - place * m)) for place, length in enumerate(lengths))
    return _head(instance, turn) + instance.forward[turn] + instance.round_trips[turn] - before


def _memory(instance: Instance) -> Bound:
    m, best = instance.num_microbatches, 0
    for rank, mine in enumerate(instance.stages):
        cap, unit = instance.caps[rank], instance.unit
        spans = [instance.forward[s] + instance.round_trips[s] + instance.backward_input[s] for s in mine]
        if len(mine) == 1 and not instance.early:
            rounds = (m - 1) // (cap // unit) + 1
            kept = rounds * (spans[0] + instance.backward_weight[mine[0]])
        else:
            area = sum(
                unit * span + (unit - instance.early) * instance.backward_weight[stage]
                for stage, span in zip(mine, spans, strict=True)
            )
            kept = -(-m * area // cap)
        best = max(best, _head(instance, mine[0]) + kept)
    return Bound(best, "memory")


def _head(instance: Instance, stage: int) -> int:
    """The way from the start to a stage, at the least."""
    return sum(instance.forward[s] + instance.delays[s] for s in range(stage))


def bound_of(schedule: Schedule, *, costs: ScheduleCosts, makespan: int, states: int = _STATES) -> Bound:
    """The best bound on any order of the same actions on the same ranks, within the memory cap of ``costs``.

    Recomputations do not count. Bidirectional placements, slices of sequences and orders without backwards have none of
    these bounds (0).
    """
    kinds = {action.kind for action in chain.from_iterable(schedule.orders)}
    whole = schedule.placement.num_streams == 1 and schedule.num_slices == 1
    if not whole or not any(kind.makes_input_gradient for kind in kinds):
        return Bound(0, "load")
    instance = Instance.of(schedule.placement, num_microbatches=schedule.num_microbatches, costs=costs)
    if Kind.BACKWARD_INPUT not in kinds:
        instance = of_whole_backwards(instance)
    return best_bound(instance, at_most=makespan, states=states)
