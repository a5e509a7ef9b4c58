from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fullbore.costs.stage import StageCost
from fullbore.ir.recipe import Layout, Recipe
from fullbore.plan.recipe_file import write_recipe
from fullbore.schedules.registry import REGISTRY
from tests.unit.cli.test_main import run

KEYS = {
    *("name", "ranks", "chunks", "microbatches", "stages", "placement", "makespan", "ideal", "bubble_fraction"),
    *("span_bubble_fraction", "bubble_overhead", "peak_activations", "lower_bound", "orders"),
}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "schedule", "show", *arguments, "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("name", REGISTRY)
def test_the_json_has_the_promised_keys(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, name, "-p", "4", "-m", "8")
    assert set(found) == KEYS
    assert (found["makespan"], found["ideal"]) == (33, 24)
    assert found["lower_bound"] == 33
    assert found["bubble_fraction"] == 1 - 24 / 33
    assert found["bubble_overhead"] == 33 / 24 - 1
    assert found["placement"] == [[0], [1], [2], [3]]
    assert found["orders"][3][:2] == (["3F0", "3B0"] if name == "1f1b" else found["orders"][3][:2])


def test_peaks_are_microbatch_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "1f1b", "-p", "4", "-m", "8")["peak_activations"] == [4, 3, 2, 1]
    assert shown(capsys, "gpipe", "-p", "2", "-m", "8")["peak_activations"] == [8, 8]


def test_costs_and_delays_are_in_the_callers_unit(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "1f1b", "-p", "2", "-m", "1", "--cost", "1,1.2,.8", "--comm", "0.25")
    assert found["makespan"] == 2 * (1 + 2) + 0.5
    uneven = shown(capsys, "1f1b", "-p", "2", "-m", "4", "--cost", "1:2,1,1")
    assert uneven["ideal"] == 16
    assert uneven["lower_bound"] == 1 + 16 + 2


def test_an_svg_is_drawn_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "picture.svg"
    shown(capsys, "1f1b", "-p", "2", "-m", "2", "--svg", str(path))
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    code, _, err = run(
        capsys, "schedule", "show", "1f1b", "-p", "2", "-m", "2", "--svg", str(tmp_path / "no" / "x.svg")
    )
    assert code == 2
    assert "cannot write the picture" in err


def test_above_the_memory_cap_the_answer_is_no(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("schedule", "show", "1f1b", "-p", "4", "-m", "8", "--memory-cap")
    code, out, err = run(capsys, *arguments, "3", "--json")
    assert code == 1
    assert err == "1f1b keeps 4 microbatch-shares on a rank, above the memory cap of 3\n"
    assert set(json.loads(out)) == KEYS
    assert run(capsys, *arguments, "4")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1fb1", "-p", "2", "-m", "2"], "did you mean '1f1b'?"),
        (["zb-v", "-p", "2", "-m", "2"], "'zb-v' is not built yet"),
        (["1f1b", "-p", "0", "-m", "2"], "num_ranks=0"),
        (["1f1b", "-p", "2", "-m", "2", "-v", "2"], "1f1b has 1 stage per rank (given -v 2); use -v 1"),
        (["1f1b", "-p", "2"], "needs -p RANKS and -m MICROBATCHES, or --recipe FILE; for example -p 4 -m 8"),
        (["1f1b", "-p", "2", "-m", "2", "--option", "waves=2"], "1f1b has no options (given 'waves')"),
        (["1f1b", "-p", "2", "-m", "2", "--option", "waves"], "an option is written key=value"),
        (["1f1b", "-p", "2", "-m", "2", "--cost", "1,1"], "forward, backward for the input, backward for the weights"),
        (["1f1b", "-p", "2", "-m", "2", "--recipe", "none.json"], "cannot read the recipe none.json"),
    ],
)
def test_bad_input_is_one_message_and_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "show", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("fullbore: ")
    assert err.count("\n") == 1


def test_a_recipe_gives_the_sizes_and_uneven_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe(Layout(pipeline=2), 1, 4, (1, 3), "1f1b")
    bare, measured = tmp_path / "bare.json", tmp_path / "measured.json"
    write_recipe(bare, recipe)
    write_recipe(measured, recipe, stage_costs=[StageCost(10, 10, 10), StageCost(20, 20, 20)])
    assert shown(capsys, "gpipe", "--recipe", str(bare))["ideal"] == 4 * 9
    code, out, _ = run(capsys, "schedule", "show", "1f1b", "--recipe", str(measured))
    assert code == 0
    assert "ms" in out
    code, _, err = run(capsys, "schedule", "show", "1f1b", "--recipe", str(bare), "-m", "5")
    assert (code, err) == (2, "fullbore: -m 5 contradicts the recipe, which has 4; leave out one of them\n")
    code, _, err = run(capsys, "schedule", "show", "1f1b", "--recipe", str(measured), "--comm", "1")
    assert code == 2
    assert "--comm has no unit beside the recipe's nanoseconds" in err


def test_the_list_names_papers_and_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schedule", "list", "--json")
    assert code == 0
    entries = json.loads(out)["schedules"]
    assert [entry["name"] for entry in entries] == list(REGISTRY)
    assert all(entry["paper"] and entry["constraints"] and entry["summary"] for entry in entries)
