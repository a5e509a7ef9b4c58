"""The end-of-run page in text, from what the run folder holds: the trace and the plan."""

from __future__ import annotations

from pathlib import Path

from fullbore.errors import RecipeError
from fullbore.plan.recipe_file import read_recipe
from fullbore.report.summary import render_summary
from fullbore.simulate.engine import simulate
from fullbore.synthesis.catalogue import get
from fullbore.timeline.shift import repeated
from fullbore.timeline.span import Timeline
from fullbore.trace.reader import median_step, read_trace

__all__ = ["predicted_timeline", "summarize_run"]


def summarize_run(run_dir: Path, *, width: int) -> str:
    """The median step of a finished run, drawn and accounted for, beside what the plan predicted.

    Raises:
        TraceError: the folder holds no readable trace.
    """
    trace = read_trace(run_dir)
    step = median_step(trace)
    return render_summary(
        trace.timeline(step),
        predicted=predicted_timeline(run_dir),
        width=width,
        run_dir=run_dir,
        step=step,
        schedule=trace.schedule,
        clock_uncertainty_ns=trace.clock_uncertainty_ns,
    )


def predicted_timeline(run_dir: Path) -> Timeline | None:
    """One step by the plan's stage costs and free links, pass after pass; None where the plan has no costs."""
    try:
        plan = read_recipe(run_dir / "plan.json")
    except RecipeError:
        return None
    if plan.stage_costs is None:
        return None
    recipe = plan.recipe
    schedule = get(recipe.schedule).build(
        recipe.layout.pipeline,
        num_microbatches=recipe.microbatches,
        num_chunks=recipe.layout.chunks,
        options=recipe.schedule_options,
    )
    one_pass = simulate(schedule, costs=plan.stage_costs)
    return repeated(one_pass, times=recipe.accumulation, num_microbatches=recipe.microbatches)
