"""Justification: push everything as late as it can go, then as early as it can go, and the gaps close.

Jerzy Wiest introduced the two passes for project scheduling (1964); Vicente Valls, Francisco Ballestin, Sacramento
Quintanilla: Justification and RCPSP: a technique that pays, European Journal of Operational Research 165 (2005), found
them to improve nearly every heuristic. First the actions, last one first, are put at the latest free place of their
rank; then, first one first, at the earliest. An action goes into a gap that it fits into, past others of its rank.

Room for activations becomes precedence: where the rank has room for K of them, its n-th forward follows its (n - K)-th
backward for the weights. That holds for whatever order comes out: if q forwards have started, at least q - K of them
had such a predecessor, all different, and all of those have ended. (Where the backward for the input gives a part back
early, the order is looked at afterwards.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from fullbore.synthesis.instance import (
    BACKWARD_WEIGHT,
    FORWARD,
    Instance,
    Orders,
    WaitCycle,
    last_ends,
)

__all__ = ["justified", "makespan"]


def justified(instance: Instance, orders: Orders, *, rounds: int = 3) -> tuple[int, Orders]:
    """The best makespan and orders met on the way, never worse than what came in. O(n log n) a round."""
    ends = last_ends(instance, orders)
    best = max(mine[-1] for mine in ends), orders
    durations = instance.durations
    now = _Placed(orders, [end - durations[code] for code, mine in enumerate(ends) for end in mine], best[0])
    for _ in range(rounds):
        try:
            late = _pass(instance, now, backwards=True)
            now = _pass(instance, late, backwards=False)
        except _Unplaced:
            break
        if now.makespan >= best[0] or not instance.fit(now.orders):
            break
        try:
            best = makespan(instance, now.orders), now.orders
        except WaitCycle:  # among actions that take no time
            break
    return best


def makespan(instance: Instance, orders: Orders) -> int:
    """When the last action ends. Raises `WaitCycle`."""
    return max(ends[-1] for ends in last_ends(instance, orders))


@dataclass(frozen=True, slots=True)
class _Placed:
    """Orders with a start for every action, which is numbered code * m + microbatch."""

    orders: Orders
    starts: list[int]
    makespan: int


class _Unplaced(Exception):
    """Among actions that take no time, one came before what it needs."""


_NONE = -1


def _pass(instance: Instance, placed: _Placed, *, backwards: bool) -> _Placed:
    """Put every action at the earliest free place, in the order of their starts; or all of it with time running
    backwards, from the last end."""
    m, durations = instance.num_microbatches, instance.durations
    follows = _room(instance, placed.orders, backwards=backwards)
    sequence = _sequence(instance, placed, backwards=backwards)
    busy_from: list[list[int]] = [[] for _ in placed.orders]
    busy_to: list[list[int]] = [[] for _ in placed.orders]
    codes: list[list[int]] = [[] for _ in placed.orders]
    ends = [_NONE] * len(follows)
    in_order = [0] * len(durations)
    needed = [
        tuple(((source - code) * m, delay) for source, delay in sources)
        for code, sources in enumerate(_waited_for(instance, backwards=backwards))
    ]
    rank_of = [rank for rank in instance.ranks for _ in range(3)]
    for action in sequence:
        code = action // m
        time = in_order[code]
        for shift, delay in needed[code]:
            arrival = ends[action + shift]
            if arrival < 0:
                raise _Unplaced
            if arrival + delay > time:
                time = arrival + delay
        before = follows[action]
        if before >= 0:
            arrival = ends[before]
            if arrival < 0:
                raise _Unplaced
            if arrival > time:
                time = arrival
        rank, duration = rank_of[code], durations[code]
        starting, ending = busy_from[rank], busy_to[rank]
        place = bisect_right(starting, time)
        if place and ending[place - 1] > time:
            time = ending[place - 1]
        end = time + duration
        while place < len(starting) and starting[place] < end:
            if ending[place] > time:
                time = ending[place]
                end = time + duration
            place += 1
        starting.insert(place, time)
        ending.insert(place, end)
        codes[rank].insert(place, code)
        in_order[code] = ends[action] = end
    whole = max(ends)
    if not backwards:
        starts = [end - durations[action // m] for action, end in enumerate(ends)]
        return _Placed(tuple(map(tuple, codes)), starts, whole)
    return _Placed(tuple(tuple(mine[::-1]) for mine in codes), [whole - end for end in ends], whole)


def _waited_for(instance: Instance, *, backwards: bool) -> Iterator[tuple[tuple[int, int], ...]]:
    """For each code the codes that its actions wait for, and how long each takes to arrive."""
    if backwards:
        yield from instance.users
    else:
        for source, delay in instance.sources:
            yield () if source is None else ((source, delay),)


def _sequence(instance: Instance, placed: _Placed, *, backwards: bool) -> list[int]:
    """The actions by start, or by end from the last one; on one rank always in its order."""
    m, durations, starts = instance.num_microbatches, instance.durations, placed.starts
    key = [0] * len(starts)
    done = [code * m for code in range(len(durations))]
    most = max(map(len, placed.orders)) + 1
    for order in placed.orders:
        for place, code in enumerate(order):
            action = done[code]
            done[code] += 1
            if backwards:
                key[action] = -((starts[action] + durations[code]) * most + place)
            else:
                key[action] = starts[action] * most + place
    return sorted(range(len(starts)), key=key.__getitem__)


def _room(instance: Instance, orders: Orders, *, backwards: bool) -> list[int]:
    """[action] the action that it follows so that the rank has room, or none."""
    m = instance.num_microbatches
    done = [code * m for code in range(3 * instance.num_stages)]
    found = [_NONE] * (3 * instance.num_stages * m)
    for order, cap in zip(orders, instance.caps, strict=True):
        taking, giving = [], []
        for code in order:
            if code % 3 == FORWARD:
                taking.append(done[code])
            elif code % 3 == BACKWARD_WEIGHT:
                giving.append(done[code])
            done[code] += 1
        for late, early in zip(taking[max(1, cap // instance.unit) :], giving, strict=False):
            if backwards:
                found[early] = late
            else:
                found[late] = early
    return found
