"""A partition with what the schedule makes of it: behind `fullbore partition`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import stages_over
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import Partition
from fullbore.plan.from_run import RunCosts
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_bytes
from fullbore.synthesis.catalogue import get
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.scale import TimeScale

__all__ = ["PartitionReport", "partition_report"]


@dataclass(frozen=True, slots=True)
class PartitionReport:
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

    @property
    def reason(self) -> str:
        return self.found.reason if self.source is None else f"{self.found.reason}; {self.source}"

    def document(self) -> dict[str, Any]:
        """The JSON answer."""
        return {
            **asdict(self.found),
            "reason": self.reason,
            "balance": self.found.balance,
            "speedup": self.found.speedup,
            "rank_memory_bytes": self.rank_memory_bytes,
            "makespan_ns": self.makespan_ns,
        }

    def text(self) -> str:
        """One line a stage, the reason, and what a step takes."""
        found, scale = self.found, TimeScale.milliseconds()
        lines = ["stage  layers            time  of mean        memory"]
        mean = sum(found.stage_time_ns) / len(found.stage_time_ns)
        names = [layer.name for layer in self.layers]
        for stage, (first, end) in enumerate(pairwise((*found.boundaries, len(names)))):
            time, memory = found.stage_time_ns[stage], found.stage_memory_bytes[stage]
            held = names[first] if end - first == 1 else f"{names[first]} to {names[end - 1]}"
            share = time / mean if mean else 1.0
            lines.append(
                f"{stage:>5}  {end - first:>6}{scale.format(time):>16}  {share:>7.2f}  {memory / 2**20:>8.1f} MiB  "
                f"{held}"
            )
        ranks = len(found.rank_time_ns)
        lines += ["", self.reason]
        if ranks > 1:
            lines.append(
                f"balance {found.balance:.2%}: a full pipe is {found.speedup:.4g} times as fast as one device, "
                f"not {ranks}"
            )
        if self.schedule.num_stages > ranks:
            busiest = found.rank_time_ns.index(max(found.rank_time_ns))
            twice = "" if self.schedule.placement.num_streams == 1 else ", as the layers are there twice"
            most = max(self.rank_memory_bytes) / 2**20
            lines.append(f"rank {busiest} has the most work; ranks need up to {most:.1f} MiB{twice}")
        lines.append(
            f"one step takes {scale.format(self.makespan_ns)} ({self.schedule.name}, "
            f"{self.schedule.num_microbatches} microbatches, free links)"
        )
        return "\n".join(lines) + "\n"


def partition_report(
    known: RunCosts,
    *,
    num_ranks: int,
    num_chunks: int | None,
    num_microbatches: int | None,
    schedule: str | None,
    objective: PartitionObjective,
    memory_bytes: int | None,
) -> PartitionReport:
    """The best cut of these layers. What is None is as in the run that they come from, and without one as a first try
    would have it: 1f1b, its own chunks, four microbatches a rank.

    Raises:
        NothingFits: no cut stays within ``memory_bytes``.
        PartitionError, ScheduleError: layers, ranks and schedule do not fit together.
    """
    layers, ran = known.layers, known.recipe
    entry = get(schedule if schedule is not None else ran.schedule if ran is not None else "1f1b")
    options: dict[str, int] = {}
    if ran is not None and entry.name == ran.schedule:
        options = ran.schedule_options
        if num_chunks is None and entry.takes_chunks:
            num_chunks = ran.layout.chunks
    count = num_microbatches
    if count is None:
        count = ran.microbatches if ran is not None else 4 * num_ranks
    order = entry.build(num_ranks, num_microbatches=count, num_chunks=num_chunks, options=options).in_turn()
    ahead = ran is not None and ran.recompute_ahead
    if ahead:
        order = recompute_ahead(order)
    found = best_partition(layers, schedule=order, objective=objective, memory_bytes=memory_bytes)
    recipe = Recipe(
        Layout(num_ranks, order.num_stages // num_ranks, streams=order.placement.num_streams),
        known.microbatch_size,
        count,
        found.layers_per_stage,
        entry.name,
        accumulation=ran.accumulation if ran is not None else 1,
        recompute=ran.recompute if ran is not None else (),
        recompute_ahead=ahead,
        schedule_options=options,
    )
    held = [layers[first:end] for first, end in pairwise((*found.boundaries, len(layers)))]
    costs = stages_over([StageCost.of_layers(stage) for stage in held], order.placement)
    memory = stages_over([StageMemory.of_layers(stage) for stage in held], order.placement)
    return PartitionReport(
        found=found,
        layers=layers,
        schedule=order,
        recipe=recipe,
        stage_costs=costs,
        makespan_ns=bubble_of(simulate(order, costs=costs)).makespan_ns,
        rank_memory_bytes=peak_bytes(order, stages=memory),
        source=known.source,
    )
