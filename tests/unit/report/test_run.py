from __future__ import annotations

from pathlib import Path

from fullbore.costs.stage import StageCost
from fullbore.ir.recipe import Layout, Recipe
from fullbore.plan.recipe_file import write_recipe
from fullbore.report.run import predicted_timeline
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate


def test_the_prediction_is_of_the_plans_chunks_and_options(tmp_path: Path) -> None:
    options = {"group_size": 3}
    recipe = Recipe(Layout(2, 3), 1, 3, (1,) * 6, "interleaved-1f1b", schedule_options=options)
    costs = [StageCost(1, 2, stage) for stage in range(6)]
    write_recipe(tmp_path / "plan.json", recipe, stage_costs=costs)
    schedule = get("interleaved-1f1b").build(2, num_microbatches=3, num_chunks=3, options=options)
    assert predicted_timeline(tmp_path) == simulate(schedule, costs=costs)


def test_a_plan_without_costs_predicts_nothing(tmp_path: Path) -> None:
    assert predicted_timeline(tmp_path) is None
    write_recipe(tmp_path / "plan.json", Recipe(Layout(2), 1, 3, (1, 1), "1f1b"))
    assert predicted_timeline(tmp_path) is None
