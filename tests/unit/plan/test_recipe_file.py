from __future__ import annotations

import json
from dataclasses import asdict, replace
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


def test_a_memory_cap_is_named_where_there_is_one(tmp_path: Path) -> None:
    capped = replace(RECIPE, memory_cap=2.5)
    write_recipe(tmp_path / "recipe.json", capped)
    assert read_recipe(tmp_path / "recipe.json").recipe == capped
    assert "memory_cap" not in recipe_document(RECIPE), "a recipe without one is as it always was"


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
        ({"layout": {"pipeline": "2"}}, r"layout\.pipeline must be a whole number \(given '2'\)"),
        ({"microbatch_size": 1.5}, r"recipe\.json: microbatch_size must be a whole number \(given 1\.5\)"),
        ({"microbatches": True}, r"microbatches must be a whole number \(given True\)"),
        ({"memory_cap": 0}, r"memory_cap is a finite number above 0 \(memory_cap=0\.0\)"),
        ({"memory_cap": float("nan")}, r"memory_cap is a finite number above 0 \(memory_cap=nan\)"),
        ({"memory_cap": "4"}, r"memory_cap must be a number \(given '4'\)"),
        ({"schedule": 3}, r"schedule must be text \(given 3\)"),
        ({"recompute": "full"}, r"recompute must be a list of texts \(given 'full'\)"),
        ({"layers_per_stage": 10}, r"layers_per_stage must be a list of whole numbers \(given 10\)"),
        ({"layers_per_stage": ["5", "5"]}, r"layers_per_stage must be a list of whole numbers"),
        ({"schedule_options": {"group_size": "4"}}, r"schedule_options must be a table of whole numbers"),
        ({"stage_costs": 7}, r"each of the 2 stages \(.*: 7\)"),
        ({"stage_costs": [7, 7]}, r"stage_costs\[0\] of a recipe is a JSON object"),
        ({"stage_costs": [{**asdict(COSTS[0]), "forward": 1.5}] * 2}, r"stage_costs\[0\]\.forward must be a whole"),
        ({"stage_costs": [{"forward": 1}] * 2}, r"stage_costs\[0\] needs forward, .*lacks backward_input, backward_w"),
        ({"stage_costs": [{**asdict(COSTS[0]), "forward": -1}] * 2}, "times must be at least 0"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({**recipe_document(RECIPE), **change}))
    with pytest.raises(RecipeError, match=message):
        read_recipe(path)


def test_a_recipe_that_lacks_keys_says_which(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"layout": {"pipeline": 2}, "layers_per_stage": [5, 5]}))
    with pytest.raises(RecipeError, match=r"a recipe needs layout, .*lacks microbatch_size, microbatches, schedule\)"):
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
