"""List scheduling: every rank, whenever it is idle, takes the most urgent thing that it can do.

Event by event: a rank wakes when its action ends or a message arrives, and takes

1. a backward for the input that has arrived;
2. a forward that has arrived and that there is room for, unless a backward is about to arrive;
3. a backward for the weights, if it is done before the next arrival or nearly so, or if only it makes room.

What "about to" and "nearly" mean, and how much of the room is for whom, is a `Policy`. A small grid of them is tried,
since none is the best for all costs: with ample memory the first does, with tight memory the others matter. Zero-bubble
schedules are found in the same way by Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline
Parallelism, arXiv 2401.10241, section 3.1, for linear placement, microbatch by microbatch.

Several stages a rank share its room. A forward of a rank's early chunk keeps its activation until the microbatch has
come through all later chunks and back, so early chunks could fill the rank and lock the later ones out. Each later
chunk therefore has a reserve, at least one activation, that earlier chunks leave free. So the list never locks: take
the blocked forward of the highest stage; what its rank keeps of this and of later chunks will end, and what earlier
chunks keep leaves its reserve free.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import product

from fullbore.synthesis.instance import Instance, Orders

__all__ = ["Policy", "TooLate", "list_schedule", "policies"]

_NEVER = 1 << 62
"""No time is as late: a search refuses costs that could come to more than a small part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Shares are of the time of the action in question."""

    overlap: float = 0.0
    """A backward for the weights may run into the next arrival by this share of its time."""

    hold: float = 0.0
    """A forward waits if a backward for the input arrives within this share of its time."""

    make_room: bool = False
    """Where the room is full and a forward waits: start a backward for the weights whatever arrives soon?"""

    deep_first: bool = False
    """Of several backwards for the input: the one of the last chunk first, or of the first chunk?"""

    reserve: float = 0.0
    """Part of a rank's room that is kept for its later chunks, of what their share of it would be: room in proportion
    to how long a chunk keeps an activation."""

    lead: int | None = None
    """So many forwards more than a full pipe needs may be ahead of their backwards; None: as many as there is room."""


def policies(*, chunked: bool) -> tuple[Policy, ...]:
    """The grid, nearest to the plain policy first, so that a part of it is the most promising part."""
    grid = [
        (overlap, hold, make_room, deep_first, reserve, lead)
        for overlap, hold, make_room, deep_first, reserve, lead in product(
            enumerate((0.0, 0.75, 0.25, 0.5, 1.0)),
            enumerate((0.0, 0.25, 0.5)),
            enumerate((False, True)),
            enumerate((False, True) if chunked else (False,)),
            enumerate((0.0, 1.0, 0.5) if chunked else (0.0,)),
            enumerate((None, 1, 0, 2, -1)),
        )
    ]
    grid.sort(key=lambda entry: (sum(place > 0 for place, _ in entry), sum(place for place, _ in entry)))
    return tuple(
        Policy(
            overlap=overlap[1],
            hold=hold[1],
            make_room=make_room[1],
            deep_first=deep_first[1],
            reserve=reserve[1],
            lead=lead[1],
        )
        for overlap, hold, make_room, deep_first, reserve, lead in grid
    )


class TooLate(Exception):
    """The order will end after the time that it was to end by."""


def list_schedule(instance: Instance, policy: Policy, *, at_most: int | None = None) -> tuple[int, Orders]:
    """Makespan and orders. O(n log n + n v) for n actions and v chunks a rank.

    Raises:
        TooLate: some rank has idled so long that the makespan will be above ``at_most``.
    """
    num_stages, m = instance.num_stages, instance.num_microbatches
    ranks, caps, unit = instance.ranks, instance.caps, instance.unit
    forward, backward, weight = instance.forward, instance.backward_input, instance.backward_weight
    early, late = instance.early, instance.unit - instance.early
    delays = instance.delays
    reserve, most_ahead = _reserves(instance, policy.reserve), _most_ahead(instance, policy.lead)
    hold, most_overlap, make_room = policy.hold, 1 - policy.overlap, policy.make_room
    chunks = instance.stages
    chunks_down = tuple(mine[::-1] for mine in chunks)
    inputs_first = chunks_down if policy.deep_first else chunks
    num_forward, num_backward, num_weight = [0] * num_stages, [0] * num_stages, [0] * num_stages
    forward_at: list[list[int]] = [[] for _ in range(num_stages)]
    backward_at: list[list[int]] = [[] for _ in range(num_stages)]
    forward_at[0] = [0] * m
    free, kept = [0] * instance.num_ranks, [0] * instance.num_ranks
    latest = _NEVER if at_most is None else at_most
    may_idle = [latest - m * instance.work(rank) for rank in range(instance.num_ranks)]
    orders: list[list[int]] = [[] for _ in range(instance.num_ranks)]
    events = [(0, ranks[0])]
    makespan = 0
    while events:
        now, rank = heapq.heappop(events)
        if free[rank] > now:
            continue
        chosen, kind, following = -1, -1, _NEVER
        for stage in inputs_first[rank]:
            index = num_backward[stage]
            if index < len(backward_at[stage]):
                arrival = backward_at[stage][index]
                if arrival <= now:
                    chosen, kind = stage, 1
                    break
                if arrival < following:
                    following = arrival
        if kind < 0:
            next_backward, room, full = following, caps[rank] - kept[rank] - unit, False
            for stage in chunks_down[rank]:
                index = num_forward[stage]
                if index == m:
                    continue
                if index < len(forward_at[stage]):
                    arrival = forward_at[stage][index]
                    if room >= 0:
                        if index - num_backward[stage] < most_ahead[stage]:
                            if arrival > now:
                                if arrival < following:
                                    following = arrival
                            elif kind < 0 and next_backward >= now + forward[stage] * hold:
                                chosen, kind = stage, 0
                    elif arrival <= now:
                        full = True
                unused = reserve[stage] - (index - num_weight[stage]) * unit
                if unused > 0:
                    room -= unused
            if kind < 0:
                for stage in chunks[rank]:
                    if num_weight[stage] < num_backward[stage]:
                        if (full and make_room) or following - now >= most_overlap * weight[stage]:
                            chosen, kind = stage, 2
                        break
        if kind < 0:
            continue
        may_idle[rank] -= now - free[rank]
        if may_idle[rank] < 0:
            raise TooLate
        if kind == 0:
            end = now + forward[chosen]
            num_forward[chosen] += 1
            kept[rank] += unit
            if chosen + 1 < num_stages:
                arrival, target = end + delays[chosen], chosen + 1
                forward_at[target].append(arrival)
                if free[ranks[target]] <= arrival:  # else it looks when its own action ends
                    heapq.heappush(events, (arrival, ranks[target]))
            else:
                backward_at[chosen].append(end)
        elif kind == 1:
            end = now + backward[chosen]
            num_backward[chosen] += 1
            kept[rank] -= early
            if chosen:
                arrival, target = end + delays[chosen - 1], chosen - 1
                backward_at[target].append(arrival)
                if free[ranks[target]] <= arrival:
                    heapq.heappush(events, (arrival, ranks[target]))
        else:
            end = now + weight[chosen]
            num_weight[chosen] += 1
            kept[rank] -= late
        free[rank] = end
        orders[rank].append(3 * chosen + kind)
        heapq.heappush(events, (end, rank))
        if end > makespan:
            makespan = end
    assert sum(map(len, orders)) == instance.num_actions, "the list has locked"
    return makespan, tuple(map(tuple, orders))


def _reserves(instance: Instance, part: float) -> list[int]:
    """[stage] units that earlier chunks of its rank leave free for it; at least one activation."""
    unit = instance.unit
    found = [0] * instance.num_stages
    for mine, cap in zip(instance.stages, instance.caps, strict=True):
        kept = {
            stage: sum(instance.durations[3 * stage : 3 * stage + 3]) + instance.round_trips[stage] for stage in mine
        }
        whole = sum(kept.values())
        for stage in mine[1:]:
            wanted = part * cap * kept[stage] / whole if whole else 0
            found[stage] = max(1, int(wanted / unit + 0.5)) * unit
        while sum(found[stage] for stage in mine[1:]) > cap - unit:
            found[max(mine[1:], key=lambda stage: found[stage])] -= unit
    return found


def _most_ahead(instance: Instance, lead: int | None) -> list[int]:
    """[stage] most forwards without their backward for the input."""
    if lead is None:
        return [instance.num_microbatches] * instance.num_stages
    period = max(map(instance.work, range(instance.num_ranks))) or 1
    return [
        max(1, -(-(instance.forward[stage] + trip + instance.backward_input[stage]) // period) + lead)
        for stage, trip in enumerate(instance.round_trips)
    ]
