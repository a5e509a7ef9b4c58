"""`auto` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import read_schedule_file
from tests.unit.cli.test_main import run


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "schedule", *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_compared_it_is_on_top_with_its_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("compare", "-p", "8", "-m", "32", "--cost", "10,11,8", "--comm", "0.5", "--memory-cap", "8")
    rows = document(capsys, *sizes)["rows"]
    assert rows[0]["name"] == "auto"
    assert all(rows[0]["makespan"] <= row["makespan"] for row in rows)
    assert max(rows[0]["peak_activations"]) <= 8
    assert rows[0]["lower_bound"] <= rows[0]["makespan"] <= 1.02 * rows[0]["lower_bound"]


def test_the_table_says_how_good_the_fastest_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "schedule", "compare", "-p", "4", "-m", "8", "--memory-cap", "4")[1].splitlines()
    assert lines[1].split()[:3] == ["auto", "2", "25.5"]
    assert "auto: within 0.0% of the best possible, load bound 25.5: no order of this work is faster" in lines


def test_it_chooses_the_placement_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("show", "auto", "-p", "4", "-m", "8")
    assert document(capsys, *sizes)["makespan"] == 25.5
    assert document(capsys, *sizes, "-v", "1")["makespan"] == 27
    v = document(capsys, *sizes, "-v", "2", "--option", "snake=1")
    assert (v["placement"], v["makespan"]) == ([[0], [1], [2], [3], [3], [2], [1], [0]], 25.5)
    loop = document(capsys, *sizes, "-v", "2", "--option", "snake=0")
    assert loop["placement"] == [[0], [1], [2], [3]] * 2


def test_a_list_of_transfers_says_how_many_stages_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "show", "auto", "-p", "4", "-m", "8", "--comm", "1:1:1")["stages"] == 4
    assert document(capsys, "show", "auto", "-p", "2", "-m", "4", "--comm", "1:2:1")["stages"] == 4
    code, _, err = run(capsys, "schedule", "show", "auto", "-p", "4", "-m", "8", "--comm", "1:1")
    assert (code, "a list needs one value for each boundary, 3 of them" in err) == (2, True)


def test_the_cap_is_kept_to(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "show", "auto", "-p", "4", "-m", "8", "--cost", "10,11,8", "--memory-cap", "2.5")
    assert max(found["peak_activations"]) <= 2.5
    code, _, err = run(capsys, "schedule", "show", "auto", "-p", "4", "-m", "8", "--memory-cap", "0.5")
    assert (code, "one microbatch keeps 1 share on every rank" in err) == (2, True)


def test_every_show_says_how_far_from_the_best_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "schedule", "show", "1f1b", "-p", "4", "-m", "8")[1]
    assert "(within 0.0% of the best possible, load bound 33: no order of this work is faster)" in out
    out = run(capsys, "schedule", "show", "1f1b", "-p", "4", "-m", "8", "--comm", "0.5")[1]
    assert "(within 13.9% of the best possible, load bound 36)" in out
    out = run(capsys, "schedule", "show", "zb-h1", "-p", "4", "-m", "8", "--cost", "115,100,65", "--memory-cap", "4")[1]
    assert "(within 0.0% of the best possible, one device bound 2690: no order of this work is faster)" in out


def test_it_is_exported_for_the_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "auto.csv"
    arguments = ("export", "auto", "-p", "3", "-m", "6", "--cost", "1:1:3,1,1", "--comm", "0.5", "--memory-cap", "3")
    document(capsys, *arguments, "--csv", str(path))
    read = read_schedule_file(path)
    assert isinstance(read, Schedule)
    shown = document(capsys, "show", *arguments[1:])
    assert [[str(action) for action in order] for order in read.orders] == shown["orders"]
    code, _, err = run(capsys, "schedule", "export", str(path), "--cost", "1,1,1", "--text", "-")
    assert (code, "is a file and has its sizes" in err) == (2, True)


def test_a_solver_proves_it(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ortools")
    sizes = ("auto", "-p", "3", "-m", "4", "-v", "2", "--option", "snake=1", "--cost", "10,11,8", "--memory-cap", "2")
    before = document(capsys, "show", *sizes)
    after = document(capsys, "show", *sizes, "--optimal", "20")
    assert before["lower_bound"] <= after["lower_bound"] <= after["makespan"] <= before["makespan"]
    assert after["lower_bound"] == after["makespan"]
    code, _, err = run(capsys, "schedule", "show", "1f1b", "-p", "2", "-m", "2", "--optimal", "1")
    assert (code, "--optimal improves what auto makes, and 1f1b is as it was published; use auto" in err) == (2, True)


def test_without_the_solver_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ortools.sat.python", None)
    code, _, err = run(capsys, "schedule", "show", "auto", "-p", "2", "-m", "2", "--optimal", "1")
    assert (code, "pip install 'fullbore[optimal]'" in err) == (2, True)
