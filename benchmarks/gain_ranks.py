"""What one rank does for `throughput.py --part schedules`: one decoder under several schedules, their steps in turn.

Layers are profiled, ZB-H1 runs a few steps, and each layer's times are scaled to what its stage took in them, as
`fullbore partition RUN` does. From these costs every schedule gets its cut, its order and its prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from random import Random

import torch
from allocator import keep_memory
from decoder import DecoderShape
from rounds import group, timed
from throughput_ranks import Batch, measured_layers, trained

from fullbore.costs.layer import LayerCost
from fullbore.costs.stage import StageCost
from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.rescale import rescale
from fullbore.plan.made import Timing, make_for
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.launch import Worker
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.engine import simulate
from fullbore.synthesis.auto import variants
from fullbore.synthesis.catalogue import get
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Timeline
from fullbore.timeline.stage_times import stage_times

__all__ = ["SCHEDULES", "Gain", "measure_gains"]

SCHEDULES = ("1f1b", "zb-h1", "zb-v", "auto")
_CHECKED = 3
"""Steps after which all schedules must have the same loss; they are not timed."""


@dataclass(slots=True)
class Gain:
    """One schedule, for one number of microbatches."""

    num_microbatches: int
    schedule: str
    placement: str
    layers_per_stage: tuple[int, ...]
    losses: tuple[float, ...]
    predicted_ns: int
    """The makespan for the measured stage costs."""

    step_ns: list[int] = field(default_factory=list)
    seen_ns: int = 0
    """The makespan for the times that its own stages took in the timed steps."""


def measure_gains(
    worker: Worker, shape: DecoderShape, tokens: int, microbatches: Sequence[int], rounds: int
) -> list[Gain]:
    torch.set_num_threads(1)
    keep_memory()
    mesh = group(worker)
    found: list[Gain] = []
    for m in microbatches:
        found += _gains(Batch.draw(shape, tokens=tokens, microbatches=m, mesh=mesh), rounds=rounds)
    mesh.barrier()
    mesh.close()
    return found


def _gains(batch: Batch, *, rounds: int) -> list[Gain]:
    mesh = batch.mesh
    layers = _layers_in_a_run(batch)
    rows, running = [], {}
    timelines: dict[str, list[Timeline]] = {name: [] for name in SCHEDULES}
    for name in SCHEDULES:
        schedule, cut = _made(get(name), layers, num_ranks=mesh.num_ranks, num_microbatches=batch.microbatches)
        pipeline, step = trained(batch, layers_per_stage=cut, schedule=schedule)
        losses = tuple(mesh.max([step()])[0] for _ in range(_CHECKED))
        predicted = simulate(schedule, costs=_stages(layers, cut)).compute_end_ns
        rows.append(Gain(batch.microbatches, name, _described(schedule.placement), cut, losses, predicted))
        running[name] = (pipeline, step)
    for index in range(rounds):
        for row in Random(f"{batch.microbatches}/{index}").sample(rows, len(rows)):
            pipeline, step = running[row.schedule]
            row.step_ns.append(timed(step, mesh=mesh).step_ns)
            timelines[row.schedule].append(pipeline.timeline())
    for row in rows:
        pipeline, _ = running[row.schedule]
        planned, placement = _stages(layers, row.layers_per_stage), pipeline.schedule.placement
        costs = _seen(timelines[row.schedule], placement=placement, planned=planned)
        row.seen_ns = simulate(pipeline.schedule, costs=costs).compute_end_ns
        pipeline.release()
    return rows


def _layers_in_a_run(batch: Batch) -> tuple[LayerCost, ...]:
    """Of the profile, scaled to what F, I and W of the stages take side by side."""
    profiled = measured_layers(batch)
    schedule = get("zb-h1").build(batch.mesh.num_ranks, num_microbatches=batch.microbatches)
    cut = best_partition(profiled, schedule=schedule).layers_per_stage
    pipeline, step = trained(batch, layers_per_stage=cut, schedule=schedule)
    timelines = []
    for index in range(1 + _CHECKED):
        step()
        if index:
            timelines.append(pipeline.timeline())
    pipeline.release()
    times = stage_times(timelines, placement=schedule.placement)
    # Every rank has times on its own clock, so their differences may round differently; rank 0's count for all.
    return rescale(profiled, layers_per_stage=cut, measured=_of_rank_0(times, batch.mesh))


def _of_rank_0(measured: Sequence[Mapping[Kind, int]], mesh: Mesh) -> Sequence[Mapping[Kind, int]]:
    return mesh.gather(measured)[0]


def _made(
    entry: ScheduleEntry, layers: Sequence[LayerCost], *, num_ranks: int, num_microbatches: int
) -> tuple[Schedule, tuple[int, ...]]:
    """The schedule for the measured stages, under the memory of 1F1B, and the cut that makes the stages."""
    cap, cuts = Fraction(num_ranks), {}

    def timing(sizes: Sizes, placement: Placement) -> Timing:
        costs = ScheduleCosts.of(placement, memory_cap=cap) if entry.cost_driven else None
        cuts[placement] = best_partition(layers, schedule=entry.make(sizes, costs)).layers_per_stage
        return Timing(_stages(layers, cuts[placement]), (), TimeScale())

    tried = variants(entry, num_ranks, num_microbatches=num_microbatches)
    schedule = make_for(entry, tried, timing=timing, memory_cap=cap).schedule
    return schedule, cuts[schedule.placement]


def _stages(layers: Sequence[LayerCost], cut: Sequence[int]) -> tuple[StageCost, ...]:
    return tuple(StageCost.of_layers(layers[first:end]) for first, end in pairwise((0, *accumulate(cut))))


def _described(placement: Placement) -> str:
    if placement.num_stages == placement.num_ranks:
        return "one a rank"
    loop = Placement.loop(placement.num_ranks, num_chunks=placement.num_stages // placement.num_ranks)
    return "loop" if placement == loop else "V"


def _seen(timelines: Sequence[Timeline], *, placement: Placement, planned: Sequence[StageCost]) -> list[StageCost]:
    """What the stages took in these steps; a whole backward counts as I, and what never ran is as planned."""
    found = []
    for cost, seen in zip(planned, stage_times(timelines, placement=placement), strict=True):
        forward = seen.get(Kind.FORWARD, cost.forward)
        if Kind.BACKWARD in seen:
            found.append(StageCost(forward, seen[Kind.BACKWARD], 0))
            continue
        first = seen.get(Kind.BACKWARD_INPUT, cost.backward_input)
        found.append(StageCost(forward, first, seen.get(Kind.BACKWARD_WEIGHT, cost.backward_weight)))
    return found
