from __future__ import annotations

import json
from pathlib import Path

import pytest

from fullbore.costs.layer import LayerCost, write_costs
from fullbore.plan.recipe_file import read_recipe
from tests.unit.cli.test_main import run

LAYERS = [LayerCost(f"layer{i}", 1_000_000, 1_000_000, 1_000_000, activation_bytes=1 << 20) for i in range(5)]


@pytest.fixture
def costs(tmp_path: Path) -> str:
    write_costs(tmp_path / "profile.json", LAYERS)
    return str(tmp_path / "profile.json")


def test_the_json_has_the_promised_keys(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "partition", costs, "-p", "4", "-m", "8", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {
        *("boundaries", "layers_per_stage", "stage_time_ns", "bottleneck_stage", "bottleneck_ns", "imbalance"),
        *("stage_memory_bytes", "makespan_ns", "objective", "reason"),
    }
    assert found["layers_per_stage"] == [2, 1, 1, 1]
    assert found["boundaries"] == [0, 2, 3, 4]
    assert found["makespan_ns"] == 8 * 6_000_000 + 3_000_000
    assert found["stage_memory_bytes"] == [8 << 20, 3 << 20, 2 << 20, 1 << 20]


def test_a_run_folder_holds_its_profile(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_folder = run(capsys, "partition", str(Path(costs).parent), "-p", "2")
    assert by_folder == run(capsys, "partition", costs, "-p", "2")
    assert "one step takes 75.00 ms (1f1b, 8 microbatches, free links)" in by_folder[1]
    assert "    0       3         9.00 ms     1.20       6.0 MiB  layer0 to layer2" in by_folder[1]


def test_a_recipe_is_written_that_show_can_draw(costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.json"
    assert run(capsys, "partition", costs, "-p", "2", "-o", str(recipe))[0] == 0
    assert read_recipe(recipe).recipe.layers_per_stage == (3, 2)
    code, out, _ = run(capsys, "schedule", "show", "1f1b", "--recipe", str(recipe), "--json")
    assert code == 0
    assert json.loads(out)["makespan"] == 75_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "6"], "use 5 stages or fewer"),
        (["-p", "2", "--memory", "2MiB"], "keeps every stage within 2097152 bytes"),
        (["-p", "2", "--memory", "lots"], "a size is a number of bytes, or one with a unit such as 80GiB"),
        (["-p", "2", "-v", "2"], "use -v 1"),
        (["-p", "2", "--schedule", "1fb1"], "did you mean '1f1b'"),
    ],
)
def test_bad_input_is_2(arguments: list[str], message: str, costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "partition", costs, *arguments)
    assert (code, out) == (2, "")
    assert message in err
