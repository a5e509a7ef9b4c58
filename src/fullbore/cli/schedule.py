"""`fullbore schedule list` and `fullbore schedule show`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import click

from fullbore.cli import schedule_check, schedule_compare, schedule_export
from fullbore.cli.argument_types import PATH_TYPE, SCHEDULE_TYPE
from fullbore.cli.file_kind import PICTURE, SCHEDULE
from fullbore.cli.output import (
    answer_no,
    json_option,
    print_json,
    print_text,
    require_cap,
    use_color,
    width,
)
from fullbore.cli.output_file import Output, require_outputs
from fullbore.cli.schedule_options import (
    cost_options,
    memory_model_option,
    names_file,
    parse_options,
    require_no_sizes,
    solve_if_asked,
    solver_option,
)
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import stages_over
from fullbore.costs.unit import parse_unit_costs
from fullbore.errors import ConfigError
from fullbore.ir.placement import Placement
from fullbore.ir.recipe import Recipe
from fullbore.plan.made import Timing, make_for, read_for
from fullbore.plan.recipe_file import RecipeFile, read_recipe
from fullbore.plan.recompute import ahead_in_stages
from fullbore.report.schedule import ScheduleReport, above_cap, schedule_report
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.synthesis.auto import variants
from fullbore.synthesis.catalogue import CATALOGUE, get
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.svg import render_svg
from fullbore.written_file import write_whole

__all__ = ["command"]


@click.group()
def command() -> None:
    """List the schedules, or draw and measure one.

    \b
    Example:
      fullbore schedule show 1f1b -p 4 -m 8
    """


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Every schedule with its paper and the sizes it exists for.

    \b
    Example:
      fullbore schedule list
    """
    if as_json:
        print_json({"schedules": [_entry_document(entry) for entry in CATALOGUE.values()]})
        return
    longest = max(map(len, CATALOGUE))
    for entry in CATALOGUE.values():
        indent = " " * (longest + 2)
        print_text(f"{entry.name:<{longest}}  {entry.summary}\n{indent}{entry.paper}; {entry.constraints}\n")
        if entry.takes_chunks:
            print_text(f"{indent}-v: any number of stages per rank, {entry.chunks} by default\n")
        for option in entry.options:
            print_text(f"{indent}--option {option.name}={option.default}: {option.summary}\n")


@command.command("show")
@click.argument("name", type=SCHEDULE_TYPE, metavar="NAME|FILE")
@click.option("-p", "ranks", type=int, metavar="RANKS", help="Number of ranks.")
@click.option("-m", "microbatches", type=int, metavar="MICROBATCHES", help="Microbatches per step.")
@click.option("-v", "chunks", type=int, metavar="CHUNKS", help="Stages per rank; the schedule's own by default.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the schedule, as `list` shows them."
)
@cost_options
@click.option("--memory-cap", type=float, metavar="X", help="Most microbatch-shares a rank may keep; exit 1 above it.")
@memory_model_option
@solver_option
@click.option("--recipe", type=PATH_TYPE, metavar="FILE", help="Take sizes and stages from a recipe.")
@click.option("--csv", "csv_file", type=PATH_TYPE, metavar="FILE", help="Also write PyTorch's CSV.")
@click.option("--svg", type=PATH_TYPE, metavar="FILE", help="Also draw it into an SVG file.")
@json_option
def show_command(
    name: str,
    ranks: int | None,
    microbatches: int | None,
    chunks: int | None,
    options: tuple[str, ...],
    cost: str | None,
    comm: str | None,
    memory_cap: float | None,
    frees: float,
    optimal: float | None,
    recipe: Path | None,
    csv_file: Path | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Draw schedule NAME, or the one in FILE, and tell its makespan, bubble and memory.

    \b
    Examples:
      fullbore schedule show 1f1b -p 4 -m 8
      fullbore schedule show interleaved-1f1b -p 4 -m 6 -v 3 --option group_size=6
      fullbore schedule show gpipe -p 2 -m 4 --cost 1:2,1,1 --comm 0.5 --json
      fullbore schedule show auto -p 4 -m 8 --cost 10,11,8 --comm 0.5 --memory-cap 4
      fullbore schedule show order.csv --cost 10,11,8
    """
    cap = require_cap(memory_cap)
    require_outputs(
        Output(option="--csv", path=csv_file, kind=SCHEDULE),
        Output(option="--svg", path=svg, kind=PICTURE),
        inputs={"NAME": Path(name) if names_file(name) else None, "--recipe": recipe},
    )
    held = None if recipe is None else read_recipe(recipe)
    if cap is None and held is not None and held.recipe.memory_cap is not None and _is_of(held.recipe, name):
        cap = Fraction(held.recipe.memory_cap)

    def timing_of(sizes: Sizes, placement: Placement) -> Timing:
        if held is not None:
            _require_fit(name, sizes, held.recipe)
        return _timing(placement, sizes, held, cost=cost, comm=comm)

    solved = None
    if names_file(name):
        given = {"-p": ranks, "-m": microbatches, "-v": chunks, "--option": options or None, "--optimal": optimal}
        require_no_sizes(name, given)
        made = read_for(Path(name), timing=timing_of, memory_cap=cap, input_backward_frees=Fraction(str(frees)))
    else:
        entry = get(name)
        made = make_for(
            entry,
            _sizes(entry, held, ranks=ranks, microbatches=microbatches, chunks=chunks, options=parse_options(options)),
            timing=timing_of,
            memory_cap=cap,
            input_backward_frees=Fraction(str(frees)),
        )
        solved = solve_if_asked(entry, made, optimal)
        made = made if solved is None else solved.made
    schedule, timing = made.schedule, made.timing
    if held is not None and held.recipe.recompute_ahead and not schedule.recomputes:
        schedule = ahead_in_stages(schedule, costs=timing.stages)
    report = schedule_report(
        schedule,
        costs=timing.stages,
        links=timing.links,
        memory_cap=cap,
        input_backward_frees=made.input_backward_frees,
        scale=timing.scale,
        proven=None if solved is None else solved.bound,
    )
    if csv_file is not None:
        schedule_export.write_csv(csv_file, schedule)
    if svg is not None:
        _write_svg(svg, report)
    if as_json:
        print_json(report.document())
    else:
        print_text(report.text(width=width(), color=use_color()))
    above = above_cap(report.peak_shares, cap)
    if above is not None:
        answer_no(f"{name} {above}")


def _entry_document(entry: ScheduleEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "paper": entry.paper,
        "constraints": entry.constraints,
        "chunks": entry.chunks,
        "takes_chunks": entry.takes_chunks,
        "splits_backward": entry.splits_backward,
        "cost_driven": entry.cost_driven,
        "runnable": entry.runnable,
        "options": [asdict(option) for option in entry.options],
    }


def _sizes(
    entry: ScheduleEntry,
    held: RecipeFile | None,
    *,
    ranks: int | None,
    microbatches: int | None,
    chunks: int | None,
    options: Mapping[str, int],
) -> tuple[Sizes, ...]:
    """Of the command line and the recipe, which must not contradict each other where both speak."""
    if held is not None:
        recipe = held.recipe
        ranks = _agreed("-p", ranks, recipe.layout.pipeline)
        microbatches = _agreed("-m", microbatches, recipe.microbatches)
        chunks = _agreed("-v", chunks, recipe.layout.chunks)
        if entry.name == recipe.schedule:
            options = {**recipe.schedule_options, **options}
    if ranks is None or microbatches is None:
        raise ConfigError(f"{entry.name} needs -p RANKS and -m MICROBATCHES, or --recipe FILE; for example -p 4 -m 8")
    return variants(entry, ranks, num_microbatches=microbatches, num_chunks=chunks, options=options)


def _require_fit(name: str, sizes: Sizes, recipe: Recipe) -> None:
    """Raises ConfigError where a file is for other sizes than the recipe (a schedule by name is made for them), or the
    recipe's times are not those of its actions."""
    if sizes.num_slices > 1:
        raise ConfigError(
            f"a recipe's times are those of whole microbatches, and {name} cuts their sequences into "
            f"{sizes.num_slices} slices; leave out --recipe, and give --cost"
        )
    for what, its, wanted in (
        ("ranks", sizes.num_ranks, recipe.layout.pipeline),
        ("stages a rank", sizes.num_chunks, recipe.layout.chunks),
        ("microbatches", sizes.num_microbatches, recipe.microbatches),
    ):
        if its != wanted:
            raise ConfigError(f"{name} has {its} {what}, and the recipe {wanted}; leave out --recipe, or give its own")


def _is_of(recipe: Recipe, name: str) -> bool:
    """Does the recipe name this schedule, or this file, however it is spelled?"""
    if name == recipe.schedule:
        return True
    return names_file(name) and names_file(recipe.schedule) and _real(name) == _real(recipe.schedule)


def _real(path: str) -> str:
    return os.path.realpath(path)


def _agreed(option: str, given: int | None, held: int) -> int:
    if given is not None and given != held:
        raise ConfigError(f"{option} {given} contradicts the recipe, which has {held}; leave out one of them")
    return held


def _timing(
    placement: Placement, sizes: Sizes, held: RecipeFile | None, *, cost: str | None, comm: str | None
) -> Timing:
    """Unit-free costs by rank; or from a recipe its measured stages, or so many layers of ``--cost`` each."""
    unit = parse_unit_costs(
        "1,1,1" if cost is None else cost,
        num_ranks=sizes.num_ranks,
        num_chunks=sizes.num_chunks,
        num_streams=placement.num_streams,
        num_slices=sizes.num_slices,
        comm="0" if comm is None else comm,
    )
    if held is None:
        return Timing(unit.of(placement), unit.links, TimeScale(unit.scale))
    if held.stage_costs is not None and cost is None:
        if comm is not None:
            raise ConfigError("--comm has no unit beside the recipe's nanoseconds; give --cost too, or leave it out")
        return Timing(held.stage_costs, (), TimeScale.milliseconds())
    per_stage = zip(unit.of(placement), stages_over(held.recipe.layers_per_stage, placement), strict=True)
    layered = tuple(
        StageCost(one.forward * count, one.backward_input * count, one.backward_weight * count)
        for one, count in per_stage
    )
    return Timing(layered, unit.links, TimeScale(unit.scale))


def _write_svg(path: Path, report: ScheduleReport) -> None:
    try:
        write_whole(path, [render_svg(report.timeline, title=report.title, scale=report.scale)])
    except OSError as error:
        raise ConfigError(f"cannot write the picture {path}: {error.strerror}") from error


for _module in (schedule_check, schedule_export, schedule_compare):
    command.add_command(_module.command)
