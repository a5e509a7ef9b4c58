"""`fullbore partition`: cut the layers of a model into stages."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from fullbore.cli.output import answer_no, json_option, print_json, print_text
from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import stages_over
from fullbore.errors import ConfigError
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.objective import Objective
from fullbore.partition.partition import NothingFits, Partition
from fullbore.plan.from_run import costs_of_file, costs_of_run
from fullbore.plan.recipe_file import write_recipe
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_bytes
from fullbore.synthesis.catalogue import get
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.scale import TimeScale

__all__ = ["command"]

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@click.command()
@click.argument("costs", type=click.Path(path_type=Path), metavar="COSTS.json|RUN_DIR")
@click.option("-p", "ranks", type=int, required=True, metavar="STAGES", help="Number of ranks.")
@click.option("-v", "chunks", type=int, metavar="CHUNKS", help="Stages per rank; the schedule's own by default.")
@click.option("-m", "microbatches", type=int, metavar="M", help="Microbatches per step; the run's, or four a rank.")
@click.option("--schedule", metavar="NAME", help="What the stages will run; the run's, or 1f1b.")
@click.option("--memory", metavar="BYTES", help="Most a rank may need, such as 80GiB.")
@click.option(
    "--objective",
    type=click.Choice([objective.value for objective in Objective]),
    default=Objective.TIME.value,
    show_default=True,
    help="What is made even.",
)
@click.option("-o", "output", type=click.Path(path_type=Path), metavar="FILE", help="Write a recipe.")
@json_option
def command(
    costs: Path,
    ranks: int,
    chunks: int | None,
    microbatches: int | None,
    schedule: str | None,
    memory: str | None,
    objective: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Cut layers into stages so that a step of the schedule is as fast as possible.

    Of a run folder, the profile is corrected by what the stages of the run really took.

    \b
    Examples:
      fullbore partition profile.json -p 4
      fullbore partition runs/first -p 4 -m 16 --memory 80GiB -o recipe.json
    """
    known = costs_of_run(costs) if costs.is_dir() else costs_of_file(costs)
    layers, ran = known.layers, known.recipe
    entry = get(schedule if schedule is not None else ran.schedule if ran is not None else "1f1b")
    if chunks is None and ran is not None and entry.name == ran.schedule and entry.takes_chunks:
        chunks = ran.layout.chunks
    count = microbatches if microbatches is not None else ran.microbatches if ran is not None else 4 * ranks
    order = entry.build(ranks, num_microbatches=count, num_chunks=chunks).in_turn()
    try:
        found = best_partition(
            layers,
            schedule=order,
            objective=Objective(objective),
            memory_bytes=None if memory is None else min(_bytes(memory), 2**62),
        )
    except NothingFits as no:
        if as_json:
            print_json({"feasible": False, "reason": str(no)})
        answer_no(str(no))
        return
    answer = _Answer.of(found, layers, order, source=known.source)
    if output is not None:
        layout = Layout(ranks, order.num_stages // ranks, streams=order.placement.num_streams)
        recipe = Recipe(
            layout,
            known.microbatch_size,
            count,
            found.layers_per_stage,
            entry.name,
            accumulation=ran.accumulation if ran is not None else 1,
            recompute=ran.recompute if ran is not None else (),
        )
        write_recipe(output, recipe, stage_costs=answer.stage_costs)
        click.echo(f"wrote {output}: {recipe.global_batch} sequences a step", err=True)
    if as_json:
        print_json(answer.document())
    else:
        print_text(answer.text())


@dataclass(frozen=True, slots=True)
class _Answer:
    """A partition with what the schedule makes of it."""

    found: Partition
    layers: tuple[LayerCost, ...]
    schedule: Schedule
    stage_costs: tuple[StageCost, ...]
    makespan_ns: int
    rank_memory_bytes: tuple[int, ...]
    source: str | None

    @classmethod
    def of(cls, found: Partition, layers: tuple[LayerCost, ...], schedule: Schedule, *, source: str | None) -> _Answer:
        held = [layers[first:end] for first, end in pairwise((*found.boundaries, len(layers)))]
        costs = stages_over([StageCost.of_layers(stage) for stage in held], schedule.placement)
        makespan = bubble_of(simulate(schedule, costs=costs)).makespan_ns
        memory = peak_bytes(
            schedule, stages=stages_over([StageMemory.of_layers(stage) for stage in held], schedule.placement)
        )
        return cls(found, layers, schedule, costs, makespan, memory, source)

    @property
    def reason(self) -> str:
        return self.found.reason if self.source is None else f"{self.found.reason}; {self.source}"

    def document(self) -> dict[str, Any]:
        return {
            **asdict(self.found),
            "reason": self.reason,
            "balance": self.found.balance,
            "speedup": self.found.speedup,
            "rank_memory_bytes": self.rank_memory_bytes,
            "makespan_ns": self.makespan_ns,
        }

    def text(self) -> str:
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


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(|[KMG]i?B)", text)
    if match is None:
        raise ConfigError(f"a size is a number of bytes, or one with a unit such as 80GiB (given {text!r})")
    return int(float(match[1]) * _UNITS[match[2]])
