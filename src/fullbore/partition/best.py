"""The best partition for a schedule: the least simulated makespan among the cuts that fit, and why it is that one.

With one stage a rank the memory limit is exact: each stage keeps as many microbatches as the schedule has in flight
there, and only cuts whose every stage fits are looked at. With several, the peak of a rank is that of the sum over its
chunks, which no single stage decides, so the search moves layers until every rank fits. A bidirectional placement is a
case of that: rank r holds stages r and p - 1 - r of one cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.ir.schedule import Schedule
from fullbore.partition.in_flight import in_flight
from fullbore.partition.judge import Judge
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import NothingFits, Partition, evaluate, solve, within
from fullbore.partition.search import Found, Looked, evened, search, too_large

__all__ = ["best_partition"]


def best_partition(
    layers: Sequence[LayerCost],
    *,
    schedule: Schedule,
    objective: PartitionObjective = PartitionObjective.TIME,
    links: Sequence[Link] = (),
    memory_bytes: int | None = None,
) -> Partition:
    """The cut to run ``schedule`` with. Parameters are only made even, not simulated.

    Args:
        links: one for each boundary of a stream; none: all free.
        memory_bytes: the most a rank may need for parameters, optimizer state and activations, both copies of the
            layers included where there are two.

    Raises:
        NothingFits: no cut within ``memory_bytes`` is known; tells the least limit that has one.
        PartitionError: fewer layers than stages of a stream.
    """
    placement, num_stages = schedule.placement, schedule.placement.stages_per_stream
    kept, chunked = in_flight(schedule), placement.num_stages > placement.num_ranks
    stage_limit = None if chunked else memory_bytes
    first = solve(layers, num_stages=num_stages, objective=objective, in_flight=kept, memory_bytes=stage_limit)
    start, decided, excess = first.layers_per_stage, None, 0
    counts, searched = start, objective is PartitionObjective.TIME and num_stages > 1
    if searched and not chunked and too_large(schedule):
        decided = _too_large(schedule, limited=memory_bytes is not None)
    elif searched or memory_bytes is not None:
        judge = Judge(layers, schedule=schedule, links=links, memory_bytes=memory_bytes)
        excess = int(judge.excess(np.array([start], np.int64))[0])
        if searched:
            weights = [layer.time_ns for layer in layers]
            starts = [start, evened(judge, start)] if chunked else [start]
            found = search(judge, starts, weights=weights, allowed=within(layers, kept, stage_limit))
            counts, excess = found.counts, found.score.excess_bytes
            decided = _decided(found, schedule, start, limited=memory_bytes is not None)
    if excess and memory_bytes is not None:
        nearest = memory_bytes + excess
        raise NothingFits(
            f"no cut into {num_stages} stages that was tried keeps every rank within {memory_bytes} bytes; the nearest "
            f"one needs {nearest} bytes ({nearest / 2**20:.1f} MiB): allow that much, or use more ranks, smaller "
            f"microbatches or recomputation",
            nearest_bytes=nearest,
        )
    return evaluate(
        layers,
        layers_per_stage=counts,
        objective=objective,
        in_flight=kept,
        placement=placement,
        decided=decided,
    )


def _decided(found: Found, schedule: Schedule, start: tuple[int, ...], *, limited: bool) -> str | None:
    """None where the slowest stage alone decided, because there was no other cut to try."""
    run = f"{schedule.name} with {schedule.num_microbatches} microbatches"
    others, cut = found.num_cuts - 1, _cut(limited)
    if found.counts == start and found.looked is Looked.STARTS:
        return _too_large(schedule, limited=limited)
    if not others:
        return f"no {cut} has a faster slowest stage" if limited else None
    if found.counts == start:
        which = "others that could be" if found.looked is Looked.ALL else "promising others"
        return f"no {cut} has a faster slowest stage, and none of {others} {which} is faster in a simulation of {run}"
    which = "all that could be faster" if found.looked is Looked.ALL else "the most promising ones"
    if found.start.excess_bytes:
        return f"of {found.num_cuts} cuts, {which}, it is the fastest within the memory limit in a simulation of {run}"
    return (
        f"of {found.num_cuts} cuts, {which}, it is the fastest in a simulation of {run}, "
        f"{1 - found.score.makespan / found.start.makespan:.2%} faster than the cut with the fastest slowest stage"
    )


def _too_large(schedule: Schedule, *, limited: bool) -> str:
    actions = sum(map(len, schedule.orders))
    return (
        f"no {_cut(limited)} has a faster slowest stage, and that alone decided: {schedule.name} with "
        f"{schedule.num_microbatches} microbatches has {actions} actions, too many to simulate one cut after the other"
    )


def _cut(limited: bool) -> str:
    return "cut within the memory limit" if limited else "contiguous cut"
