"""The benchmarks run and answer. How fast anything is, is no matter of a test; how good a cut is, is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def answer(name: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found["machine"]) == {"cores", "architecture", "system", "python", "numpy"}
    return found


def test_the_simulator_is_measured_for_every_schedule() -> None:
    rows = answer("simulator.py", "--ranks", "4", "--microbatches", "8", "--repeats", "1")["rows"]
    assert [row["schedule"] for row in rows[:3]] == ["gpipe", "1f1b", "interleaved-1f1b"]
    assert [row["actions"] for row in rows[:3]] == [64, 64, 128]


def test_exact_cuts_are_exact_and_the_search_loses_nothing_on_small_models() -> None:
    tables = answer("partition.py", "--vectors", "40", "--models", "2", "--repeats", "1")["tables"]
    first, *others = tables["bottleneck over the optimum"]
    assert (first["optimal"], first["worst"]) == ("100%", "+0%")
    assert all(row["worst"] != "+0%" for row in others)
    assert {row["searched_worst"] for row in tables["simulated makespan over the best of all cuts"]} == {"+0.0%"}


def test_what_is_made_for_costs_is_near_its_bound_and_holds_under_jitter() -> None:
    arguments = ("--instances", "2", "--seed", "5", "--sizes", "4,8")
    tables = answer("synthesis.py", *arguments)["tables"]
    rows = tables["gap to the bound, and against the best published schedule"]
    assert [row["cap"] for row in rows] == ["p", "1.5 p", "2 p"]
    assert all(float(row["gap_worst"].rstrip("%")) <= 5 for row in rows)
    assert all(float(row["published_worst"].rstrip("%")) <= 0 for row in rows)
    assert all(float(row["realised_worst"].rstrip("%")) <= 1 for row in rows)
    assert [(row["p"], row["m"]) for row in tables["seconds to make one"]] == [(4, 8)]
