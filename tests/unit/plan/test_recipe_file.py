from __future__ import annotations

import json
from pathlib import Path

import pytest

from fullbore.costs.stage import StageCost
from fullbore.errors import RecipeError
from fullbore.ir.recipe import Layout, Recipe
from fullbore.plan.recipe_file import RecipeFile, read_recipe, recipe_document, write_recipe

RECIPE = Recipe(Layout(pipeline=2), 2, 8, (5, 5), "1f1b", accumulation=3, recompute=("block1",))
COSTS = (StageCost(1, 2, 3), StageCost(4, 5, 6))


@pytest.mark.parametrize("costs", [None, COSTS])
def test_what_was_written_is_read_back(tmp_path: Path, costs: tuple[StageCost, ...] | None) -> None:
    write_recipe(tmp_path / "recipe.json", RECIPE, stage_costs=costs)
    assert read_recipe(tmp_path / "recipe.json") == RecipeFile(RECIPE, costs)


def test_two_streams_have_one_count_for_each_stage_of_one(tmp_path: Path) -> None:
    both = Recipe(Layout(pipeline=2, chunks=2, streams=2), 1, 4, (5, 5), "dualpipe")
    assert both.boundaries == (0, 5, 10)
    write_recipe(tmp_path / "recipe.json", both, stage_costs=COSTS * 2)
    assert read_recipe(tmp_path / "recipe.json") == RecipeFile(both, COSTS * 2)
    assert "streams" not in recipe_document(RECIPE)["layout"], "a recipe of one stream is as it always was"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"microbatchs": 4}, r"unknown key 'microbatchs' .*did you mean 'microbatches'"),
        ({"layout": {"pipelines": 2}}, r"unknown key 'pipelines' .*layout.*did you mean 'pipeline'"),
        ({"layers_per_stage": [10]}, r"one count for each of the 2 stages \(given 1: \[10\]\)"),
        ({"layout": {"pipeline": 2, "tensor": 2}}, "the tensor axis is not built yet"),
        ({"stage_costs": [{"forward": 1, "backward_input": 1, "backward_weight": 1}]}, r"each of the 2 stages .*: 1\)"),
        ({"layout": {"pipeline": 2, "chunks": 2, "streams": 2}, "layers_per_stage": [1, 2, 3, 4]}, "of a stream"),
        ({"layout": {"pipeline": 3, "streams": 2}}, r"two over an even number of stages \(streams=2, pipeline=3"),
        ({"layout": 7}, "layout of a recipe is a JSON object"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({**recipe_document(RECIPE), **change}))
    with pytest.raises(RecipeError, match=message):
        read_recipe(path)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "JSON object")])
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_recipe(tmp_path / "recipe.json")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot read the recipe .*none\.json"):
        read_recipe(tmp_path / "none.json")
    with pytest.raises(RecipeError, match=r"cannot write the recipe .*none"):
        write_recipe(tmp_path / "none" / "recipe.json", RECIPE)
