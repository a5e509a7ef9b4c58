"""The benchmarks run and answer. How fast anything is, is no matter of a test; how good a cut is, is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


def answer(name: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found["machine"]) == {"cores", "architecture", "system", "python", "numpy", "torch"}
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


def test_the_device_check_says_why_it_is_skipped_and_checks_what_needs_no_gpu() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "device_check.py"), "--json"]
    small = ["--device", "cpu", "--ranks", "2", "--width", "8", "--rows", "2", "--microbatches", "4"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, check=True, timeout=110)
    rows = json.loads(done.stdout)["rows"]
    assert [(row["ok"], row["spans"]) for row in rows] == [(True, "right")] * len(rows)
    assert {row["schedule"] for row in rows} >= {"gpipe", "1f1b", "interleaved-1f1b"}
    if not torch.cuda.is_available():
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
        assert "no CUDA device" in json.loads(done.stdout)["skipped"]


@pytest.mark.slow
def test_the_runtimes_are_compared_in_pairs_at_the_makespans_that_the_formulas_give() -> None:
    rows = answer("runtime_overhead.py", "--cells", "1f1b,p=2,m=8,4KiB,jitter=0;", "--rounds", "1")["rows"]
    assert [(row["schedule"], row["system"], row["simulated_ms"]) for row in rows] == [
        *(("1f1b", system, 270.0) for system in ("fullbore", "torch", "fullbore +1", "fullbore +2")),
        *(("interleaved-1f1b", system, 255.0) for system in ("fullbore", "torch")),
    ]
    assert all(row["step_ms"] > row["simulated_ms"] for row in rows)


@pytest.mark.slow
def test_every_system_trains_to_the_same_loss_before_it_is_timed() -> None:
    arguments = ("--small", "--tokens", "16", "--rounds", "1", "--systems", "one;hand;torch;fullbore")
    rows = answer("throughput.py", *arguments)["rows"]
    assert [row["system"] for row in rows] == [
        *("one process", "hand-written loop", "torch.distributed.pipelining"),
        *("fullbore, equal cut", "fullbore, measured cut"),
    ]
    assert {row["layers"] for row in rows[1:4]} == {"5 5"}
    assert len({round(row["loss"], 5) for row in rows}) == 1


@pytest.mark.slow
def test_split_backwards_run_under_both_runtimes_at_the_makespans_of_their_orders() -> None:
    """Real waits, 2 ms an action: how fast it is does not matter here, who runs what does."""
    small = ("--ranks", "2", "--microbatches", "4", "--action-ms", "2", "--rounds", "1", "--cells", "jitter=0;")
    rows = answer("split_overhead.py", *small)["rows"]
    found = {(row["system"], row["order"]): row for row in rows}
    ours = {order for system, order in found if system == "fullbore"}
    assert ours >= {"interleaved-1f1b", "InterleavedZeroBubble", "zb-v", "dualpipe-v", "zb-h1", "auto"}
    theirs = {order for system, order in found if system == "PyTorch"}
    assert theirs == {"Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}
    assert {order for system, order in found if system == "PyTorch, CSV of fullbore"} == {"zb-v", "auto"}
    # p = 2, m = 4: 1F1B in two chunks waits (p - 1) half actions of F and B; ZB-H1 waits p - 1 whole actions.
    assert found["fullbore", "interleaved-1f1b"]["simulated"] == pytest.approx(1 + 3 / 24, abs=1e-4)
    assert found["fullbore", "zb-h1"]["simulated"] == pytest.approx(1 + 1 / 12, abs=1e-4)
    assert found["fullbore", "auto"]["shares"] <= 2
    for row in rows:
        assert float(row["to_ideal"].split()[0]) > row["simulated"]


@pytest.mark.slow
def test_predicted_and_realised_gains_of_schedules_are_compared_at_equal_losses() -> None:
    arguments = ("--part", "schedules", "--small", "--tokens", "16", "--rounds", "1", "--microbatches", "4")
    rows = answer("throughput.py", *arguments)["rows"]
    assert [(row["m"], row["schedule"]) for row in rows] == [(4, name) for name in ("1f1b", "zb-h1", "zb-v", "auto")]
    assert rows[0]["predicted_ms"] == 0
    assert [row["stages"] for row in rows[:3]] == ["one a rank", "one a rank", "V"]
    assert len({round(row["loss"], 5) for row in rows}) == 1
    simulated = [row["simulated_ms"] for row in rows]
    assert simulated[3] <= 1.05 * min(simulated), "made for these stages, with the same memory; cuts differ"


def test_fullbore_holds_fewer_boundary_tensors_than_pytorch_and_keeps_none_between_steps() -> None:
    rows = answer("memory.py", "--ranks", "2", "--microbatches", "8", "--rows", "64")["rows"]
    assert [row["torch_kept"] for row in rows] == [8, 8, 24, 24]
    assert {row["fullbore_kept"] for row in rows} == {0}
    assert all(row["fullbore_peak"] < row["torch_peak"] for row in rows)


def test_recording_is_measured_against_a_step_that_records_nothing() -> None:
    (row,) = answer("recording.py", "--ranks", "2", "--microbatches", "4", "--rounds", "1")["rows"]
    assert min(row["recorded_ms"], row["unrecorded_ms"]) > 50


@pytest.mark.slow
def test_packing_recovers_most_of_what_uneven_documents_cost() -> None:
    """Simulated, where no other work on the machine counts; the real row only runs."""
    real, *simulated = answer("packing.py", "--small", "--batches", "2", "--length", "512")["rows"]
    assert (real["step"], real["p"], real["m"]) == ("real", 2, 8)
    assert [(row["p"], row["m"]) for row in simulated] == [(2, 8), (4, 8), (4, 16), (8, 16), (8, 32)]
    for row in simulated:
        assert row["even_ms"] < 0.95 * row["in_order_ms"]
        assert float(row["recovered_of_all"].rstrip("%")) >= 80


def test_what_is_made_for_costs_is_near_its_bound_and_holds_under_jitter() -> None:
    arguments = ("--instances", "2", "--seed", "5", "--sizes", "4,8")
    tables = answer("synthesis.py", *arguments)["tables"]
    rows = tables["gap to the bound, and against the best published schedule"]
    assert [row["cap"] for row in rows] == ["p", "1.5 p", "2 p"]
    assert all(float(row["gap_worst"].rstrip("%")) <= 5 for row in rows)
    assert all(float(row["published_worst"].rstrip("%")) <= 0 for row in rows)
    assert all(float(row["realised_worst"].rstrip("%")) <= 1 for row in rows)
    assert [(row["p"], row["m"]) for row in tables["seconds to make one"]] == [(4, 8)]


def test_a_split_backward_is_compared_with_a_whole_one_and_has_its_bits() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "split_backward.py"), "--json", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--cases", "2 Llama blocks, 32 wide, 16 tokens"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["recompute"], row["forwards"], row["held"]) for row in rows] == [
        (False, 1, "65,536"),
        (True, 2, "65,536"),
    ]
