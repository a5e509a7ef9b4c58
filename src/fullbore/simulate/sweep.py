"""Sweep: the end of every action of a compiled schedule, for given durations and delays, exact to the tick.

    end = max(end of the action before it on its rank, end of its source + delay) + duration

Two ways to compute it, both linear in the number of actions and equal to the last bit:

* by level: all actions of a level in a handful of array operations. The cost is per level, so it pays where levels are
  wide, and most where many sets of costs are computed side by side (the columns of a [node, set] array).
* one by one: a plain loop over lists. The cost is per action, whatever the shape of the schedule.

`docs/benchmarks.md` has the measurements that the choice between them rests on.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from fullbore.simulate.compiled import CompiledSchedule
from fullbore.simulate.wiring import Ints

__all__ = ["end_times", "makespans", "replayed_makespans"]

_WIDE = 20
"""Actions a level from which the sweep by level is the faster one for a single set of costs."""

_TOGETHER = 1 << 18
"""Numbers in one block of columns: wide levels for narrow schedules, and still little enough for a core's cache."""


def end_times(compiled: CompiledSchedule, *, durations: Ints, delays: Ints) -> Ints:
    """[node] when each action ends; the first possible start is 0. ``durations`` and ``delays`` are [node]."""
    num_levels = len(compiled.level_edges) - 1
    wide = compiled.num_actions >= _WIDE * num_levels
    under_way = _joined(compiled, durations[compiled.by_level], delays[compiled.by_level])
    by_place = (_by_level if wide else _one_by_one)(compiled, durations[compiled.by_level], under_way)
    ends = np.empty(compiled.num_actions, np.int64)
    ends[compiled.by_level] = by_place[1:]
    forward, backward = compiled.pairs
    ends[forward] = ends[backward] - durations[backward]
    return ends


def makespans(compiled: CompiledSchedule, *, durations: Ints, delays: Ints) -> Ints:
    """[set] when the last action ends, for every column of ``durations`` and ``delays``, which are [row, set].

    Args:
        durations: [stage * number of kinds + kind, set]: a flat table of costs, as `CompiledSchedule.cost_row` indexes.
        delays: [boundary, set], with one more row of zeros at the end, as `CompiledSchedule.boundary_row` indexes.
    """
    num_sets = durations.shape[1]
    found = np.zeros(num_sets, np.int64)
    if not compiled.num_actions:
        return found
    cost_row, boundary_row = compiled.cost_row[compiled.by_level], compiled.boundary_row[compiled.by_level]
    block = max(1, _TOGETHER // compiled.num_actions)
    free = not delays.any()
    for first in range(0, num_sets, block):
        columns = slice(first, first + block)
        under_way = None if free else delays[:, columns][boundary_row]
        taken = durations[:, columns][cost_row]
        ends = _by_level(compiled, taken, _joined(compiled, taken, under_way))
        found[columns] = ends.max(axis=0)
    return found


def replayed_makespans(compiled: CompiledSchedule, *, durations: Ints, delays: Ints) -> Ints:
    """[replay] when the last action ends, where every action has its own duration in every replay.

    Args:
        durations: [node, replay].
        delays: [node], the same in all of them.
    """
    found = np.zeros(durations.shape[1], np.int64)
    if not compiled.num_actions:
        return found
    under_way = delays[compiled.by_level][:, None] if delays.any() else None
    block = max(1, _TOGETHER // compiled.num_actions)
    for first in range(0, len(found), block):
        columns = slice(first, first + block)
        taken = durations[:, columns][compiled.by_level]
        found[columns] = _by_level(compiled, taken, _joined(compiled, taken, under_way)).max(axis=0)
    return found


@overload
def _joined(compiled: CompiledSchedule, durations: Ints, delays: Ints) -> Ints: ...
@overload
def _joined(compiled: CompiledSchedule, durations: Ints, delays: Ints | None) -> Ints | None: ...
def _joined(compiled: CompiledSchedule, durations: Ints, delays: Ints | None) -> Ints | None:
    """[place(, set)] The delays, where a pair starts only when both inputs are there.

    The backward of a pair ends at max(end of the forward, arrival + forward) + backward: as if its own input arrived a
    forward later.
    """
    forward, backward = compiled.pair_places
    if not len(forward):
        return delays
    found = np.zeros_like(durations) if delays is None else np.broadcast_to(delays, durations.shape).copy()
    found[backward] += durations[forward]
    return found


def _by_level(compiled: CompiledSchedule, durations: Ints, delays: Ints | None) -> Ints:
    """[1 + place(, set)] the ends; place 0 is the time before everything. No delays: all free."""
    ends = np.zeros((compiled.num_actions + 1, *durations.shape[1:]), np.int64)
    before, source, edges = compiled.before_place, compiled.source_place, compiled.level_edges
    first = 0
    for end in edges[1:]:
        now = ends.take(source[first:end], axis=0)
        if delays is not None:
            now += delays[first:end]
        np.maximum(now, ends.take(before[first:end], axis=0), out=now)
        now += durations[first:end]
        ends[first + 1 : end + 1] = now
        first = end
    return ends


def _one_by_one(compiled: CompiledSchedule, durations: Ints, delays: Ints) -> Ints:
    """The same for one set of costs."""
    ends = [0]
    for before, source, duration, delay in zip(
        compiled.before_place.tolist(),
        compiled.source_place.tolist(),
        durations.tolist(),
        delays.tolist(),
        strict=True,
    ):
        free, arrival = ends[before], ends[source] + delay
        ends.append((free if free > arrival else arrival) + duration)
    return np.array(ends, np.int64)
