"""A recipe fixes what runs: an override beside it either says the same or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.cli.run_options import read_config
from fullbore.errors import ConfigError
from fullbore.ir.recipe import Layout, Recipe
from fullbore.plan.recipe_file import write_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.json"
    options = {"group_size": 2, "extra_warmup": 1}
    write_recipe(path, Recipe(Layout(2, 2), 1, 4, (3, 2, 2, 3), "interleaved-1f1b", schedule_options=options))
    return path


@pytest.mark.parametrize(
    ("override", "has"),
    [
        ("pipeline.stages=4", r"pipeline\.stages = 2"),
        ("pipeline.options.group_size=4", r"pipeline\.options\.group_size = 2"),
        ("pipeline . options . group_size = 4", r"pipeline\.options\.group_size = 2"),
        ("pipeline.options.slices=4", r"no pipeline\.options\.slices"),
        ("pipeline.options={ group_size = 2 }", r"pipeline\.options = \{'group_size': 2, 'extra_warmup': 1\}"),
    ],
)
def test_an_override_that_contradicts_the_recipe_is_refused(override: str, has: str, recipe: Path) -> None:
    with pytest.raises(ConfigError, match=rf"contradicts the recipe .*recipe\.json, which has {has}; leave out one"):
        read_config(None, recipe=recipe, overrides=(override,))


def test_one_that_says_the_same_or_something_else_is_taken(recipe: Path) -> None:
    overrides = ("pipeline.options.group_size=2", "pipeline.stages=2", "train.steps=7", "model.config.hidden_size=64")
    config = read_config(None, recipe=recipe, overrides=overrides)
    assert config.pipeline.options == {"group_size": 2, "extra_warmup": 1}
    assert (config.train.steps, config.model.config) == (7, {"hidden_size": 64})


@pytest.mark.parametrize("key", ["pipeline.schedule", "pipeline . schedule"])
def test_a_schedule_file_may_be_spelled_in_more_ways_than_one(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.csv").touch()
    write_recipe(Path("recipe.json"), Recipe(Layout(2), 1, 4, (1, 1), "order.csv"))
    config = read_config(None, recipe=Path("recipe.json"), overrides=(f"{key}=./order.csv",))
    assert Path(config.pipeline.schedule).name == "order.csv"
    with pytest.raises(ConfigError, match=r"contradicts the recipe recipe\.json, which has pipeline\.schedule = "):
        read_config(None, recipe=Path("recipe.json"), overrides=(f"{key}=./other.csv",))


def test_a_recipe_whose_order_has_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.json", Recipe(Layout(2), 1, 4, (1, 1), f"{'n' * 300}.csv"))
    with pytest.raises(ConfigError, match=r"takes its order from .*nn\.csv, which is not there; write into"):
        read_config(None, recipe=tmp_path / "recipe.json", overrides=())
