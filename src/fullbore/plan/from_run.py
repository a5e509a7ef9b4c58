"""What a finished run says about the costs of its layers: its profile, corrected by its own trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fullbore.costs.layer import LayerCost, read_costs, read_microbatch_size
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ir.recipe import Recipe
from fullbore.partition.rescale import rescale
from fullbore.plan.recipe_file import read_recipe
from fullbore.plan.recompute import with_recompute
from fullbore.plan.schedule import is_file
from fullbore.timeline.stage_times import stage_times
from fullbore.trace.format import trace_path
from fullbore.trace.reader import read_trace

__all__ = ["RunCosts", "costs_of_file", "costs_of_run"]

_STEPS = 20
"""The last so many steps are enough for a median."""


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Layer costs, and where they come from."""

    layers: tuple[LayerCost, ...]
    """With the recomputation of the run counted in the backward, or by itself where it ran ahead."""

    recipe: Recipe | None
    """What was run; None where the folder does not say."""

    source: str | None
    """One sentence on the correction; None where the profile stands as it is."""

    microbatch_size: int
    """Sequences that the costs are for; 1 where the file does not say."""

    own_order: str | None = None
    """The run's copy of its schedule, where that came from a file: the file may be gone, or say something else now."""


def costs_of_file(path: Path) -> RunCosts:
    """The layers of a COSTS.json. Raises `CostsError` as `read_costs` does."""
    return RunCosts(read_costs(path), None, None, read_microbatch_size(path))


def costs_of_run(run_dir: Path) -> RunCosts:
    """Read ``profile.json``, and ``plan.json`` and the trace where they are there.

    Raises:
        CostsError: no profile, or one of other layers than were run.
        RecipeError, TraceError: a file that is there cannot be read.
    """
    if not (run_dir / "profile.json").exists():
        raise CostsError(f"{run_dir} has no profile.json; give the folder of a run, or a COSTS.json itself")
    layers = read_costs(run_dir / "profile.json")
    if not (run_dir / "plan.json").exists():
        return RunCosts(layers, None, None, read_microbatch_size(run_dir / "profile.json"))
    recipe = read_recipe(run_dir / "plan.json").recipe
    copy = run_dir / "schedule.txt"
    own_order = str(copy) if is_file(recipe.schedule) and copy.exists() else None
    profiled = with_recompute(layers, names=recipe.recompute, ahead=recipe.recompute_ahead)
    if not trace_path(run_dir, rank=0).exists():
        return RunCosts(profiled, recipe, None, recipe.microbatch_size, own_order)
    trace = read_trace(run_dir)
    if not trace.steps:
        return RunCosts(profiled, recipe, None, recipe.microbatch_size, own_order)
    steps = trace.steps[1:][-_STEPS:] or trace.steps
    measured = stage_times(map(trace.timeline, steps), placement=trace.placement)
    found = rescale(profiled, layers_per_stage=recipe.layers_per_stage, measured=measured)
    source = _source(profiled, found, recipe, num_steps=len(steps))
    return RunCosts(found, recipe, source, recipe.microbatch_size, own_order)


def _source(profiled: tuple[LayerCost, ...], found: tuple[LayerCost, ...], recipe: Recipe, *, num_steps: int) -> str:
    factors = []
    for first, end in zip(recipe.boundaries[:-1], recipe.boundaries[1:], strict=True):
        before, after = (StageCost.of_layers(layers[first:end]).total for layers in (profiled, found))
        factors.append(f"{after / before:.2f}" if before else "new")
    return (
        f"layer costs are those of the profile, rescaled to what the stages took in {num_steps} "
        f"{'step' if num_steps == 1 else 'steps'} of the run (times {', '.join(factors)} in stages 0 to "
        f"{len(factors) - 1})"
    )
