"""`fullbore partition`: cut the layers of a model into stages."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import click

from fullbore.cli.argument_types import PATH_TYPE, SCHEDULE_TYPE, is_there
from fullbore.cli.file_kind import RECIPE
from fullbore.cli.output import answer_no, json_option, print_json, print_text
from fullbore.cli.output_file import Output, require_outputs
from fullbore.errors import ConfigError
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import NothingFits
from fullbore.plan.from_run import costs_of_file, costs_of_run
from fullbore.plan.partition import planned_partition
from fullbore.plan.recipe_file import write_recipe
from fullbore.report.partition import PartitionReport
from fullbore.shown import shown

__all__ = ["command"]

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@click.command()
@click.argument("costs", type=PATH_TYPE, metavar="COSTS.json|RUN_DIR")
@click.option("-p", "ranks", type=int, required=True, metavar="STAGES", help="Number of ranks.")
@click.option("-v", "chunks", type=int, metavar="CHUNKS", help="Stages per rank; the schedule's own by default.")
@click.option("-m", "microbatches", type=int, metavar="M", help="Microbatches per step; the run's, or four a rank.")
@click.option("--schedule", type=SCHEDULE_TYPE, metavar="NAME", help="What the stages will run; the run's, or 1f1b.")
@click.option("--memory", metavar="BYTES", help="Most a rank may need, such as 80GiB.")
@click.option(
    "--objective",
    type=click.Choice([objective.value for objective in PartitionObjective]),
    default=PartitionObjective.TIME.value,
    show_default=True,
    help="What is made even.",
)
@click.option("-o", "output", type=PATH_TYPE, metavar="FILE", help="Write a recipe.")
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
    numbers = (("-p", ranks, "ranks"), ("-v", chunks, "stages a rank"), ("-m", microbatches, "microbatches"))
    for option, given, what in numbers:
        if given is not None and given < 1:
            raise ConfigError(f"{option} is a number of {what}, at least 1 (given {option} {given})")
    require_outputs(Output(option="-o", path=output, kind=RECIPE), inputs={"COSTS": costs})
    known = costs_of_run(costs) if is_there(costs, kind=Path.is_dir) else costs_of_file(costs)
    try:
        planned = planned_partition(
            known,
            num_ranks=ranks,
            num_chunks=chunks,
            num_microbatches=microbatches,
            schedule=schedule,
            objective=PartitionObjective(objective),
            memory_bytes=None if memory is None else min(_bytes(memory), 2**62),
        )
    except NothingFits as no:
        if as_json:
            print_json({"feasible": False, "reason": str(no)})
        answer_no(str(no))
        return
    if output is not None:
        write_recipe(output, planned.recipe, stage_costs=planned.stage_costs)
        click.echo(f"wrote {output}: {planned.recipe.global_batch} sequences a step", err=True)
    report = PartitionReport(planned)
    if as_json:
        print_json(report.document())
    else:
        print_text(report.text())


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,24}(?:\.[0-9]{1,24})?) ?(|[KMG]i?B)", text)
    if match is None:
        raise ConfigError(f"a size is a number of bytes, or one with a unit such as 80GiB (given {shown(repr(text))})")
    return int(Fraction(match[1]) * _UNITS[match[2]])
