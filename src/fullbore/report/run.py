"""The end-of-run page in text, from what the run folder holds: the trace and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fullbore.costs.layer import read_costs
from fullbore.costs.links import Link
from fullbore.costs.rehearsal import read_rehearsal
from fullbore.costs.streams import links_over, sizes_over
from fullbore.diagnose.slow_stage import SlowStage
from fullbore.errors import CostsError, RecipeError
from fullbore.ir.placement import Placement
from fullbore.ir.recipe import Recipe
from fullbore.plan.recipe_file import read_recipe
from fullbore.report.summary import render_summary
from fullbore.simulate.engine import simulate
from fullbore.synthesis.catalogue import get
from fullbore.timeline.shift import repeated
from fullbore.timeline.span import Timeline
from fullbore.trace.reader import median_step, read_trace

__all__ = ["predicted_timeline", "summarize_run"]


def summarize_run(run_dir: Path, *, width: int, slow_stage: SlowStage | None = None) -> str:
    """The median step of a finished run, drawn and accounted for, beside what the plan predicted.

    ``slow_stage``: what the run has found.

    Raises:
        TraceError: the folder holds no readable trace.
    """
    trace = read_trace(run_dir)
    step = median_step(trace)
    return render_summary(
        trace.timeline(step),
        predicted=predicted_timeline(run_dir),
        width=width,
        slow_stage=slow_stage,
        run_dir=run_dir,
        step=step,
        schedule=trace.schedule,
        clock_uncertainty_ns=trace.clock_uncertainty_ns,
    )


def predicted_timeline(run_dir: Path) -> Timeline | None:
    """One step by the plan's stage costs, pass after pass; None where the plan has no costs.

    Links are free but for those of an emulated run, which its profile names.
    """
    try:
        plan = read_recipe(run_dir / "plan.json")
    except RecipeError:
        return None
    if plan.stage_costs is None:
        return None
    recipe = plan.recipe
    schedule = (
        get(recipe.schedule)
        .build(
            recipe.layout.pipeline,
            num_microbatches=recipe.microbatches,
            num_chunks=recipe.layout.chunks,
            options=recipe.schedule_options,
        )
        .in_turn()
    )
    links, sizes = _links(run_dir / "profile.json", recipe, placement=schedule.placement)
    one_pass = simulate(schedule, costs=plan.stage_costs, links=links, message_bytes=sizes)
    return repeated(one_pass, times=recipe.accumulation, num_microbatches=recipe.microbatches)


def _links(profile: Path, recipe: Recipe, *, placement: Placement) -> tuple[tuple[Link, ...], Sequence[int]]:
    """Link and message size of each boundary; no links where the profile has none or is of other layers."""
    free = (), [0] * (placement.num_stages - 1)
    try:
        links, layers = read_rehearsal(profile).links, read_costs(profile)
    except CostsError:
        return free
    edges = recipe.boundaries
    if edges[-1] != len(layers):
        return free
    sizes = [layers[end - 1].output_bytes for end in edges[1:-1]]
    return links_over(links, placement), sizes_over(sizes, placement)
