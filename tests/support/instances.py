"""Instances for the tests of the search, and the optimum of small ones by trying every order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.placement import Placement
from fullbore.schedules.costs import ScheduleCosts
from fullbore.synthesis.instance import Instance


def costs_for(
    placement: Placement,
    stages: Sequence[tuple[int, int, int]],
    *,
    delay: int = 0,
    cap: Fraction | int | None = None,
    frees: Fraction = Fraction(0),
) -> ScheduleCosts:
    """One triple for every stage, or one for all."""
    triples = list(stages) if len(stages) == placement.num_stages else list(stages) * placement.num_stages
    return ScheduleCosts.of(
        placement,
        stages=[StageCost(*triple) for triple in triples],
        links=[Link(delay)] * (placement.num_stages - 1),
        memory_cap=None if cap is None else Fraction(cap),
        input_backward_frees=frees,
    )


def instance_of(
    placement: Placement,
    *,
    num_microbatches: int,
    stages: Sequence[tuple[int, int, int]],
    delay: int = 0,
    cap: Fraction | int | None = None,
    frees: Fraction = Fraction(0),
) -> Instance:
    costs = costs_for(placement, stages, delay=delay, cap=cap, frees=frees)
    return Instance.of(placement, num_microbatches=num_microbatches, costs=costs)


def optimum(instance: Instance) -> int:
    """The least makespan of all orders, kind by kind in the order of the microbatches: no pruning but what is already
    as long as the best. For a dozen actions or so."""
    m, last = instance.num_microbatches, instance.num_stages - 1
    best = [sum(instance.durations) * m + 2 * m * sum(instance.delays) + 1]
    gives = (-instance.unit, instance.early, instance.unit - instance.early)

    def extend(done: list[list[int]], free: list[int], room: list[int]) -> None:
        if max(free) >= best[0]:
            return
        if sum(map(len, done)) == instance.num_actions:
            best[0] = max(free)
            return
        for code, mine in enumerate(done):
            stage, kind = divmod(code, 3)
            rank, index = instance.ranks[stage], len(mine)
            if index == m or room[rank] + gives[kind] < 0:
                continue
            source, delay = code - 1, 0
            if kind == 0:
                source, delay = (code - 3, instance.delays[stage - 1]) if stage else (-1, 0)
            elif kind == 1 and stage < last:
                source, delay = code + 3, instance.delays[stage]
            if source >= 0 and len(done[source]) <= index:
                continue
            start = max(free[rank], done[source][index] + delay if source >= 0 else 0)
            end = start + instance.durations[code]
            extend(
                [[*times, end] if place == code else times for place, times in enumerate(done)],
                [end if place == rank else time for place, time in enumerate(free)],
                [units + gives[kind] if place == rank else units for place, units in enumerate(room)],
            )

    extend([[] for _ in instance.durations], [0] * instance.num_ranks, list(instance.caps))
    return best[0]


def relaxed_optimum(instance: Instance, rank: int) -> int:
    """The least makespan if only ``rank`` is busy with one thing at a time and every other rank with any number."""
    best = [sum(instance.durations) * instance.num_microbatches + 2 * sum(instance.delays) * instance.num_microbatches]
    m, last = instance.num_microbatches, instance.num_stages - 1
    gives = (-instance.unit, instance.early, instance.unit - instance.early)
    mine = [3 * stage + kind for stage in instance.stages[rank] for kind in range(3)]

    def settled(ends: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """With what follows on the other ranks, each as soon as its input is there."""
        found = dict(ends)
        for index in range(m):
            path = [(3 * stage, 3 * stage - 3) for stage in range(last + 1)]
            path += [(3 * stage + 1, 3 * stage + 4 if stage < last else 3 * stage) for stage in range(last, -1, -1)]
            path += [(3 * stage + 2, 3 * stage + 1) for stage in range(last + 1)]
            for code, source in path:
                if code in mine or (source >= 0 and (source, index) not in found):
                    continue
                boundary = min(code // 3, source // 3) if source >= 0 and source // 3 != code // 3 else None
                delay = 0 if boundary is None else instance.delays[boundary]
                start = found[source, index] + delay if source >= 0 else 0
                found[code, index] = start + instance.durations[code]
        return found

    def extend(ends: dict[tuple[int, int], int], free: int, room: int, done: dict[int, int]) -> None:
        whole = settled(ends)
        if max([free, *whole.values()]) >= best[0]:
            return
        if len(ends) == len(mine) * m:
            best[0] = max(whole.values())
            return
        for code in mine:
            stage, kind = divmod(code, 3)
            index = done[code]
            if index == m or room + gives[kind] < 0:
                continue
            source = code - 1
            if kind == 0:
                source = code - 3
            elif kind == 1 and stage < last:
                source = code + 3
            if source >= 0 and (source, index) not in whole:
                continue
            crosses = source >= 0 and source // 3 != stage
            arrival = whole[source, index] if source >= 0 else 0
            arrival += instance.delays[min(stage, source // 3)] if crosses else 0
            end = max(free, arrival) + instance.durations[code]
            extend({**ends, (code, index): end}, end, room + gives[kind], {**done, code: index + 1})

    extend({}, 0, instance.caps[rank], dict.fromkeys(mine, 0))
    return best[0]
