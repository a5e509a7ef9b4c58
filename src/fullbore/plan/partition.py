"""A partition that is planned by itself: the cut, what runs it, and what a step of it takes and needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from fullbore.config.run import BatchConfig, PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import stages_over
from fullbore.errors import InvalidSchedule, ScheduleError
from fullbore.ir.recipe import Recipe
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.in_flight import in_flight
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import NothingFits, Partition
from fullbore.plan.from_run import RunCosts
from fullbore.plan.recompute import ahead_in_stages
from fullbore.plan.schedule import AskedSchedule, drawn_schedule, is_file, is_same
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_bytes
from fullbore.timeline.bubble import bubble_of

__all__ = ["PlannedPartition", "planned_partition"]

_OPTIONS = MappingProxyType({"stages": "-p ", "chunks": "-v ", "microbatches": "-m "})
"""How `fullbore partition` is given what a run file calls by keys; for messages."""

_TRIES = 2
"""Cuts to look for under a memory limit: for equal stages, and for the order that the first cut brought."""


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """The cut, its stages, and one step of it."""

    found: Partition
    layers: tuple[LayerCost, ...]
    schedule: Schedule
    recipe: Recipe
    """What runs the cut."""

    stage_costs: tuple[StageCost, ...]
    """Of all stages, those of a second stream too."""

    makespan_ns: int
    rank_memory_bytes: tuple[int, ...]
    source: str | None
    """Where the layers' costs come from; None where that is their file."""


def planned_partition(
    known: RunCosts,
    *,
    num_ranks: int,
    num_chunks: int | None,
    num_microbatches: int | None,
    schedule: str | None,
    objective: PartitionObjective,
    memory_bytes: int | None,
) -> PlannedPartition:
    """The best cut of these layers. What is None is as in the run that they come from, and without one as a first try
    would have it: 1f1b, its own chunks, four microbatches a rank.

    As in a run, an order that follows costs is made for equal stages first, and for the stages of the cut then. It is
    the second one that runs, and that everything said is about.

    Raises:
        NothingFits: no cut stays within ``memory_bytes``.
        ConfigError, PartitionError, ScheduleError: layers, ranks and schedule do not fit together.
    """
    layers, ran = known.layers, known.recipe
    config = _asked_run(
        known, num_ranks=num_ranks, num_chunks=num_chunks, num_microbatches=num_microbatches, schedule=schedule
    )
    asked = _schedule_of(config, file_of_run=schedule is None)
    asked.require_layers(len(layers), words=_OPTIONS)
    ahead = ran is not None and ran.recompute_ahead
    order = asked.make()
    if order.num_slices > 1:
        raise ScheduleError(
            f"a partition counts whole microbatches, and {asked.name} cuts their sequences into {order.num_slices} "
            "slices; give another schedule, or draw this one with `fullbore schedule show`"
        )
    for _ in range(_TRIES):
        cut_for = recompute_ahead(order) if ahead and not order.recomputes else order
        found = best_partition(layers, schedule=cut_for, objective=objective, memory_bytes=memory_bytes)
        held = [layers[first:end] for first, end in pairwise((*found.boundaries, len(layers)))]
        costs = stages_over([StageCost.of_layers(stage) for stage in held], asked.placement)
        memory = [StageMemory.of_layers(stage) for stage in held]
        if asked.follows_costs:
            order = asked.make(stages=[cost.recomputing_inside for cost in costs])
        needed = peak_bytes(order, stages=stages_over(memory, asked.placement))
        if memory_bytes is None or max(needed) <= memory_bytes:
            break
    else:
        assert memory_bytes is not None, "without a limit the first cut fits"
        raise _too_much(asked.name, max(needed), memory_bytes=memory_bytes)
    if ahead and not order.recomputes:
        order = ahead_in_stages(order, costs=costs)
    pipeline = config.pipeline
    recipe = Recipe(
        asked.layout(config.mesh),
        known.microbatch_size,
        order.num_microbatches,
        found.layers_per_stage,
        pipeline.schedule,
        accumulation=config.batch.accumulation,
        recompute=ran.recompute if ran is not None else (),
        recompute_ahead=ahead,
        schedule_options=dict(pipeline.options),
        memory_cap=None if asked.memory_cap is None else float(asked.memory_cap),
    )
    kept = zip(memory, in_flight(order), strict=True)
    return PlannedPartition(
        found=replace(found, stage_memory_bytes=tuple(stage.with_in_flight(count) for stage, count in kept)),
        layers=layers,
        schedule=order,
        recipe=recipe,
        stage_costs=costs,
        makespan_ns=bubble_of(simulate(order, costs=costs)).makespan_ns,
        rank_memory_bytes=needed,
        source=known.source,
    )


def _asked_run(
    known: RunCosts, *, num_ranks: int, num_chunks: int | None, num_microbatches: int | None, schedule: str | None
) -> RunConfig:
    """The run that the cut is for. Of the run before, its chunks and options go with its schedule, and so does its
    memory cap where the ranks are as many: it counts in a rank's share of the model."""
    ran = known.recipe
    if ran is None:
        return RunConfig(
            batch=BatchConfig(microbatch_size=known.microbatch_size),
            pipeline=PipelineConfig(
                stages=num_ranks,
                chunks=num_chunks,
                microbatches=4 * num_ranks if num_microbatches is None else num_microbatches,
                schedule="1f1b" if schedule is None else schedule,
            ),
        )
    same = schedule is None or is_same(schedule, ran.schedule)
    return RunConfig(
        batch=BatchConfig(microbatch_size=known.microbatch_size, accumulation=ran.accumulation),
        pipeline=PipelineConfig(
            stages=num_ranks,
            chunks=ran.layout.chunks if same and num_chunks is None else num_chunks,
            microbatches=ran.microbatches if num_microbatches is None else num_microbatches,
            schedule=(known.own_order or ran.schedule) if schedule is None else schedule,
            options=dict(ran.schedule_options) if same else {},
            memory_cap=ran.memory_cap if same and num_ranks == ran.layout.pipeline else None,
            recompute=ran.recompute or "none",
            recompute_ahead=ran.recompute_ahead,
        ),
    )


def _schedule_of(config: RunConfig, *, file_of_run: bool) -> AskedSchedule:
    """The schedule to cut for. A file that the run before named may be gone, and is for one size."""
    try:
        return drawn_schedule(config, words=_OPTIONS)
    except (InvalidSchedule, ScheduleError) as error:
        if not file_of_run or not is_file(config.pipeline.schedule):
            raise
        raise ScheduleError(
            "the run took its order from a file, which cannot be used here; give --schedule NAME, or the sizes of the "
            f"run: {error}"
        ) from error


def _too_much(name: str, needed: int, *, memory_bytes: int) -> NothingFits:
    return NothingFits(
        f"no cut that was tried keeps every rank within {memory_bytes} bytes once {name} is made for its stages; the "
        f"last one needs {needed} bytes ({needed / 2**20:.1f} MiB): allow that much, or use more ranks, smaller "
        "microbatches or recomputation",
        nearest_bytes=needed,
    )
