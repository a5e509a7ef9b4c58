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
