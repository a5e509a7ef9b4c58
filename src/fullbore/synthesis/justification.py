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

from fullbore.synthesis.instance import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Circle, Instance, Orders, last_ends

__all__ = ["justified"]

_ROUNDS = 4


def justified(instance: Instance, orders: Orders) -> tuple[int, Orders]:
    """The best makespan and orders met on the way, never worse than what came in. O(n log n) a pass."""
    best = makespan(instance, orders), orders
    current = orders
    for _ in range(_ROUNDS):
        try:
            late = _pass(instance, current, backwards=True)
            current = _pass(instance, late, backwards=False)
            found = makespan(instance, current)
        except (Circle, _Unplaced):
            break
        if found >= best[0] or not instance.fit(current):
            break
        best = found, current
    return best


def makespan(instance: Instance, orders: Orders) -> int:
    """When the last action ends."""
    return max(ends[-1] for ends in last_ends(instance, orders))


class _Unplaced(Exception):
    """Among actions that take no time, one came before what it needs."""


def _pass(instance: Instance, orders: Orders, *, backwards: bool) -> Orders:
    """Put every action at the earliest free place, in the order of their starts; or all of it with time running
    backwards, from the last end."""
    durations, delays, ranks = instance.durations, instance.delays, instance.ranks
    last = instance.num_stages - 1
    starts = last_ends(instance, orders)
    for code, times in enumerate(starts):
        starts[code] = [end - durations[code] for end in times]
    follows = _room(instance, orders, backwards=backwards)
    sign = -1 if backwards else 1
    queue = sorted(
        (sign * start, sign * (start + durations[code]), sign * place, code, index)
        if not backwards
        else (sign * (start + durations[code]), sign * start, sign * place, code, index)
        for code, place, index, start in _placed(instance, orders, starts)
    )
    busy_from: list[list[int]] = [[] for _ in orders]
    busy_to: list[list[int]] = [[] for _ in orders]
    codes: list[list[int]] = [[] for _ in orders]
    ends: list[dict[int, int]] = [{} for _ in durations]
    in_order = [0] * len(durations)
    for _, _, _, code, index in queue:
        stage, kind = divmod(code, 3)
        time = in_order[code]
        source = -1
        delay = 0
        if not backwards:
            if kind != FORWARD:
                source = code + 3 if kind == BACKWARD_INPUT and stage < last else code - 1
                delay = delays[stage] if source > code else 0
            elif stage:
                source, delay = code - 3, delays[stage - 1]
        elif kind == FORWARD:
            source, delay = (code + 3, delays[stage]) if stage < last else (code + 1, 0)
        elif kind == BACKWARD_INPUT:
            if index not in ends[code + 1]:
                raise _Unplaced
            time = max(time, ends[code + 1][index])
            if stage:
                source, delay = code - 3, delays[stage - 1]
        if source >= 0:
            if index not in ends[source]:
                raise _Unplaced
            time = max(time, ends[source][index] + delay)
        before = follows.get((code, index))
        if before is not None:
            if before[1] not in ends[before[0]]:
                raise _Unplaced
            time = max(time, ends[before[0]][before[1]])
        rank, duration = ranks[stage], durations[code]
        starting, ending = busy_from[rank], busy_to[rank]
        place = bisect_right(starting, time)
        if place and ending[place - 1] > time:
            time = ending[place - 1]
        while place < len(starting) and starting[place] < time + duration:
            time = max(time, ending[place])
            place += 1
        starting.insert(place, time)
        ending.insert(place, time + duration)
        codes[rank].insert(place, code)
        in_order[code] = ends[code][index] = time + duration
    return tuple(tuple(mine[::-1] if backwards else mine) for mine in codes)


def _placed(instance: Instance, orders: Orders, starts: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """(code, place in its rank's order, microbatch, start) of every action."""
    done = [0] * (3 * instance.num_stages)
    found = []
    for order in orders:
        for place, code in enumerate(order):
            found.append((code, place, done[code], starts[code][done[code]]))
            done[code] += 1
    return found


def _room(instance: Instance, orders: Orders, *, backwards: bool) -> dict[tuple[int, int], tuple[int, int]]:
    """What follows what so that the rank has room: (code, microbatch) -> (code, microbatch)."""
    done = [0] * (3 * instance.num_stages)
    found = {}
    for order, cap in zip(orders, instance.caps, strict=True):
        taking: list[tuple[int, int]] = []
        giving: list[tuple[int, int]] = []
        for code in order:
            if code % 3 == FORWARD:
                taking.append((code, done[code]))
            elif code % 3 == BACKWARD_WEIGHT:
                giving.append((code, done[code]))
            done[code] += 1
        for late, early in zip(taking[max(1, cap // instance.unit) :], giving, strict=False):
            if backwards:
                found[early] = late
            else:
                found[late] = early
    return found
