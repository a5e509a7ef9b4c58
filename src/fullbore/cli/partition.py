"""`fullbore partition`: cut the layers of a model into stages."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from fullbore.cli.output import json_option, print_json, print_text
from fullbore.costs.layer import read_costs
from fullbore.costs.stage import StageCost
from fullbore.errors import ConfigError, ScheduleError
from fullbore.ir.recipe import Layout, Recipe
from fullbore.partition.in_flight import in_flight
from fullbore.partition.objective import Objective
from fullbore.partition.partition import Partition, solve
from fullbore.plan.recipe_file import write_recipe
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.scale import TimeScale

__all__ = ["command"]

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@click.command()
@click.argument("costs", type=click.Path(path_type=Path), metavar="COSTS.json|RUN_DIR")
@click.option("-p", "ranks", type=int, required=True, metavar="STAGES", help="Number of ranks.")
@click.option("-v", "chunks", type=int, metavar="CHUNKS", help="Stages per rank; the schedule's own by default.")
@click.option("-m", "microbatches", type=int, metavar="M", help="Microbatches per step; four for each rank by default.")
@click.option("--schedule", default="1f1b", show_default=True, metavar="NAME", help="What the stages will run.")
@click.option("--memory", metavar="BYTES", help="Most a stage may need, such as 80GiB.")
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
    schedule: str,
    memory: str | None,
    objective: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Cut layers into stages so that the slowest stage is as fast as possible.

    \b
    Examples:
      fullbore partition profile.json -p 4
      fullbore partition runs/first -p 4 -m 16 --memory 80GiB -o recipe.json
    """
    layers = read_costs(costs / "profile.json" if costs.is_dir() else costs)
    entry = get(schedule)
    if chunks is not None and chunks != entry.chunks:
        raise ScheduleError(
            f"{entry.name} has {entry.chunks} stage per rank (given -v {chunks}); use -v {entry.chunks}"
        )
    count = microbatches if microbatches is not None else 4 * ranks
    order = entry.build(ranks, num_microbatches=count)
    found = solve(
        layers,
        num_stages=order.num_stages,
        objective=Objective(objective),
        in_flight=in_flight(order),
        memory_bytes=None if memory is None else _bytes(memory),
    )
    edges = (*found.boundaries, len(layers))
    stage_costs = [StageCost.of_layers(layers[first:end]) for first, end in pairwise(edges)]
    makespan = bubble_of(simulate(order, costs=stage_costs)).makespan_ns
    if output is not None:
        recipe = Recipe(Layout(ranks, entry.chunks), 1, count, found.layers_per_stage, entry.name)
        write_recipe(output, recipe, stage_costs=stage_costs)
    if as_json:
        print_json(_document(found, makespan_ns=makespan))
    else:
        names = [layer.name for layer in layers]
        print_text(_text(found, names=names, makespan_ns=makespan, schedule=f"{entry.name}, {count} microbatches"))


def _document(found: Partition, *, makespan_ns: int) -> dict[str, Any]:
    return {**asdict(found), "makespan_ns": makespan_ns}


def _text(found: Partition, *, names: list[str], makespan_ns: int, schedule: str) -> str:
    scale = TimeScale.milliseconds()
    lines = ["stage  layers            time  of mean        memory"]
    mean = sum(found.stage_time_ns) / len(found.stage_time_ns)
    for stage, (first, end) in enumerate(pairwise((*found.boundaries, len(names)))):
        time, memory = found.stage_time_ns[stage], found.stage_memory_bytes[stage]
        held = names[first] if end - first == 1 else f"{names[first]} to {names[end - 1]}"
        share = time / mean if mean else 1.0
        lines.append(
            f"{stage:>5}  {end - first:>6}{scale.format(time):>16}  {share:>7.2f}  {memory / 2**20:>8.1f} MiB  {held}"
        )
    lines.append("")
    lines.append(found.reason)
    lines.append(f"one step takes {scale.format(makespan_ns)} ({schedule}, free links)")
    return "\n".join(lines) + "\n"


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(|[KMG]i?B)", text)
    if match is None:
        raise ConfigError(f"a size is a number of bytes, or one with a unit such as 80GiB (given {text!r})")
    return int(float(match[1]) * _UNITS[match[2]])
