"""The end-of-run page in text, from what the run gave back and what its folder holds: the trace and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fullbore.costs.emulation import read_emulation
from fullbore.costs.layer import read_costs
from fullbore.costs.links import Link
from fullbore.costs.streams import links_over, sizes_over
from fullbore.diagnose.over_steps import RECENT_STEPS
from fullbore.diagnose.slow_stage import SlowStage
from fullbore.errors import CostsError, InputError, ScheduleError, TraceError
from fullbore.ir.placement import Placement
from fullbore.ir.recipe import Recipe
from fullbore.ir.schedule_file import read_computed
from fullbore.ir.validate import validate
from fullbore.plan.recipe_file import read_recipe
from fullbore.report.summary import render_summary
from fullbore.said import first_line
from fullbore.simulate.engine import simulate
from fullbore.timeline.shift import repeated
from fullbore.timeline.span import Timeline
from fullbore.trace.reader import median_step, read_trace, warm_steps
from fullbore.train.result import TrainResult

__all__ = ["predicted_timeline", "render_run", "summarize_run"]


def render_run(result: TrainResult, *, width: int) -> str:
    """The page: one of the last steps, and the run's numbers. A run that has finished is not failed by its report."""
    try:
        summary = summarize_run(Path(result.run_dir), width=width, slow_stage=result.slow_stage)
    except TraceError as error:
        summary = f"no timeline: {error}\n"
    return f"{summary}\n{_closing(result)}"


def summarize_run(run_dir: Path, *, width: int, slow_stage: SlowStage | None = None) -> str:
    """The median step of the last ones of a finished run, drawn and accounted for, beside what the plan predicted or
    why nothing is.

    ``slow_stage``: what the run has found.

    Raises:
        TraceError: the folder holds no readable trace.
    """
    trace = read_trace(run_dir)
    counted = warm_steps(trace, last=RECENT_STEPS)
    step = median_step(trace, among=counted)
    predicted, without = None, ""
    try:
        predicted = predicted_timeline(run_dir)
    except InputError as error:  # an order that is gone, say, or that was edited since
        without = f"\nno prediction: {first_line(error).removesuffix(':')}\n"
    summary = render_summary(
        trace.timeline(step),
        steps=[trace.timeline(other) for other in counted],
        predicted=predicted,
        width=width,
        slow_stage=slow_stage,
        run_dir=run_dir,
        step=step,
        schedule=trace.schedule,
        clock_uncertainty_ns=trace.clock_uncertainty_ns,
    )
    return summary + without


def predicted_timeline(run_dir: Path) -> Timeline | None:
    """One step of the order that ran by the plan's stage costs, pass after pass; None where there is no plan, or it has
    no costs.

    Links are free but for those of an emulated run, which its profile names.

    Raises:
        InputError: plan and schedule cannot be read or do not fit together.
    """
    if not (run_dir / "plan.json").exists():
        return None
    plan = read_recipe(run_dir / "plan.json")
    if plan.stage_costs is None:
        return None
    recipe, schedule = plan.recipe, read_computed(run_dir / "schedule.txt")
    validate(schedule)
    of_plan = recipe.layout.pipeline, recipe.layout.pipeline * recipe.layout.chunks, recipe.microbatches
    of_order = schedule.num_ranks, schedule.num_stages, schedule.num_microbatches
    if of_plan != of_order:
        raise ScheduleError(
            f"{run_dir / 'schedule.txt'} is not what ran: plan.json has {of_plan[0]} ranks, {of_plan[1]} stages and "
            f"{of_plan[2]} microbatches, and it {of_order[0]}, {of_order[1]} and {of_order[2]}"
        )
    links, sizes = _links(run_dir / "profile.json", recipe, placement=schedule.placement)
    one_pass = simulate(schedule, costs=plan.stage_costs, links=links, message_bytes=sizes)
    return repeated(one_pass, times=recipe.accumulation, num_microbatches=schedule.num_microbatches)


def _links(profile: Path, recipe: Recipe, *, placement: Placement) -> tuple[tuple[Link, ...], Sequence[int]]:
    """Link and message size of each boundary; no links where the profile has none or is of other layers."""
    free = (), [0] * (placement.num_stages - 1)
    try:
        links, layers = read_emulation(profile).links, read_costs(profile)
    except CostsError:
        return free
    edges = recipe.boundaries
    if edges[-1] != len(layers):
        return free
    sizes = [layers[end - 1].output_bytes for end in edges[1:-1]]
    return links_over(links, placement), sizes_over(sizes, placement)


def _closing(result: TrainResult) -> str:
    lines = [f"run folder       {result.run_dir}"]
    if result.loss is not None:
        lines.append(f"loss             {result.loss:.4f} nats a token in step {result.steps}")
    if result.eval_loss is not None and result.first_eval_loss is not None:
        lines.append(f"held-out loss    {result.first_eval_loss:.4f} -> {result.eval_loss:.4f} nats a token")
    if result.skipped_steps:
        lines.append(f"skipped          {result.skipped_steps} of {result.steps} steps: a gradient was not finite")
    lines += [f"trace            {problem}" for problem in result.trace_problems]
    speed = "" if result.tokens_per_s is None else f", {result.tokens_per_s:,.0f} tokens/s"
    lines.append(f"step             {result.step_ns / 1e6:.1f} ms{speed} (medians)")
    return "\n".join(lines) + "\n"
