"""`fullbore train` end to end on a tiny model: what it answers, what it leaves behind, and that it learns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fullbore.config.load import load_run
from fullbore.costs.layer import read_costs
from fullbore.ir.schedule_file import read_schedule_file
from fullbore.plan.recipe_file import read_recipe
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Row
from fullbore.trace.reader import read_trace
from tests.support.command import ROOT, TINY_LLAMA, fullbore, processes_of, run

KEYS = {
    *("run_dir", "steps", "loss", "eval_loss", "tokens_per_s", "step_ns"),
    *("bubble_fraction_measured", "bubble_fraction_predicted", "bottleneck_stage"),
}
OPTIONS = (*TINY_LLAMA, "--set", "pipeline.microbatches=4", "--set", "train.eval_batches=1")


def sets(*pairs: str) -> tuple[str, ...]:
    return tuple(part for pair in pairs for part in ("--set", pair))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    """One run of 12 steps with an evaluation every 5, started as a user does: (answer, run folder, stderr)."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    more = sets(f"train.run_dir={folder}", "train.steps=12", "train.eval_every=5", "optimizer.lr=0.01")
    every = (*OPTIONS, *more, *sets("optimizer.warmup_steps=2"), "--json")
    ran = run([sys.executable, "-m", "fullbore", "train", *every])
    assert ran.code == 0, ran.err
    return json.loads(ran.out), folder, ran.err


def test_the_answer_has_the_contracts_keys(trained: tuple[dict[str, Any], Path, str]) -> None:
    answer, folder, _ = trained
    assert answer.keys() >= KEYS
    assert (answer["run_dir"], answer["steps"]) == (str(folder), 12)
    assert 0 < answer["bubble_fraction_measured"] < 1
    assert 0 < answer["bubble_fraction_predicted"] < 1
    assert answer["bottleneck_stage"] in (0, 1)


def test_held_out_loss_falls_from_that_of_a_guess(trained: tuple[dict[str, Any], Path, str]) -> None:
    answer, _, _ = trained
    assert answer["first_eval_loss"] == pytest.approx(5.55, abs=0.15)  # ln 256 = 5.545
    assert answer["eval_loss"] < answer["first_eval_loss"] - 0.5


def test_the_run_folder_says_what_ran(trained: tuple[dict[str, Any], Path, str]) -> None:
    answer, folder, _ = trained
    config = load_run(folder / "run.toml")
    assert (config.train.steps, config.model.config["hidden_size"]) == (12, 32)
    layers = read_costs(folder / "profile.json")
    assert [layer.name for layer in layers] == ["embed", *(f"layers.{i}" for i in range(4)), "head"]
    plan = read_recipe(folder / "plan.json")
    assert sum(plan.recipe.layers_per_stage) == 6
    ran, trace = read_schedule_file(folder / "schedule.txt"), read_trace(folder)
    assert ran.name == plan.recipe.schedule
    for rank, order in enumerate(ran.orders):
        assert tuple(span.action for span in trace.timeline(12).on(rank, Row.COMPUTE)) == order
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "eval_loss" in line] == [0, 5, 10, 12]
    assert lines[-1]["eval_loss"] == answer["eval_loss"]
    assert all(line["grad_norm"] > 0 for line in lines if "loss" in line)


def test_every_action_of_every_step_is_in_the_trace(trained: tuple[dict[str, Any], Path, str]) -> None:
    _, folder, _ = trained
    trace = read_trace(folder)
    assert trace.steps == tuple(range(1, 13))
    for step in trace.steps:
        timeline = trace.timeline(step)
        for rank in (0, 1):
            computed = timeline.on(rank, Row.COMPUTE)
            assert {str(span.action) for span in computed} == {f"{rank}{kind}{m}" for kind in "FB" for m in range(4)}
            for row in Row:
                spans = timeline.on(rank, row)
                assert all(a.end_ns <= b.start_ns for a, b in pairwise(spans))
            assert {str(span.activity) for span in timeline.on(rank, Row.FLUSH)} >= {"data", "optimizer"}


def test_what_was_chosen_is_said(trained: tuple[dict[str, Any], Path, str]) -> None:
    _, _, said = trained
    for words in ("fingerprint", "layers", "bubble predicted", "held-out loss", "step 12/12"):
        assert words in said


def test_what_is_known_is_said_before_the_layers_are_measured(trained: tuple[dict[str, Any], Path, str]) -> None:
    """Once for all ranks, on stderr, in this order."""
    _, folder, said = trained
    begun = [line.partition(": ")[0] for line in said.splitlines()]
    begun = [line for line in begun if line != "warning"]  # that the measurement was disturbed
    assert begun[:8] == [
        "starting 2 ranks",
        "model  llama",
        "data   stdlib",
        begun[3],
        "measuring 6 layers",
        f"run    {folder}",
        "       batch",
        "       partition",
    ]
    assert begun[3].startswith("       fingerprint ")
    assert "measuring 6 layers: to cut them, to predict a step and to find a slow stage\n" in said


def test_an_existing_run_is_not_overwritten(trained: tuple[dict[str, Any], Path, str]) -> None:
    _, folder, _ = trained
    before = (folder / "metrics.jsonl").read_bytes()
    ran = fullbore("train", *OPTIONS, *sets(f"train.run_dir={folder}"))
    assert ran.code == 2
    assert "already holds a run" in ran.err
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_folder_with_ones_own_run_file_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("# mine\n[train]\nsteps = 1\n")
    ran = fullbore("train", str(tmp_path / "run.toml"), *OPTIONS, *sets(f"train.run_dir={tmp_path}"))
    assert ran.code == 2
    assert (tmp_path / "run.toml").read_text().startswith("# mine")


def test_a_diverging_run_still_answers_in_json(tmp_path: Path) -> None:
    """JSON has no NaN: it becomes null, and every rank skips the updates."""
    more = sets(f"train.run_dir={tmp_path / 'r'}", "train.steps=4", "train.eval_every=0", "optimizer.lr=1e9")
    ran = fullbore("train", *OPTIONS, *more, *sets("optimizer.warmup_steps=0", "optimizer.name=sgd"), "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["steps"] == 4


def test_torchrun_ranks_train_the_same_model(trained: tuple[dict[str, Any], Path, str], tmp_path: Path) -> None:
    """The group that is there is joined; evaluation in between changes nothing."""
    answer, folder, _ = trained
    partition = read_recipe(folder / "plan.json").recipe.layers_per_stage
    more = sets(f"train.run_dir={tmp_path / 'r'}", "train.steps=12", "train.eval_every=0", "optimizer.lr=0.01")
    fixed = sets("optimizer.warmup_steps=2", f"pipeline.partition={list(partition)}")
    ran = run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fullbore"),
            *("train", *OPTIONS, *more, *fixed, "--json"),
        ]
    )
    assert ran.code == 0, ran.err
    again = json.loads(ran.out)
    assert again["loss"] == answer["loss"]
    assert again["eval_loss"] is None


def test_a_summary_is_printed_for_a_person(tmp_path: Path) -> None:
    ran = fullbore("train", *OPTIONS, *sets(f"train.run_dir={tmp_path / 'r'}", "train.steps=2", "train.eval_every=0"))
    assert ran.code == 0, ran.err
    for words in ("r0 ", "r1 ", "slowest stage", "bubble fraction", "predicted", "trace export", "loss"):
        assert words in ran.out


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs", "dualpipe"])
def test_several_stages_a_rank_train_the_same_model(
    schedule: str, trained: tuple[dict[str, Any], Path, str], tmp_path: Path
) -> None:
    """The same losses, held out and in training, up to float32; the trace has both stages of a rank."""
    _, one, _ = trained
    folder = tmp_path / "r"
    more = sets(f"train.run_dir={folder}", "train.steps=2", "train.eval_every=5", "optimizer.lr=0.01")
    fixed = sets("optimizer.warmup_steps=2", f"pipeline.schedule={schedule}")
    ran = fullbore("train", *OPTIONS, *more, *fixed)
    assert ran.code == 0, ran.err
    assert schedule in ran.out
    assert _metric(folder, "eval_loss")[0] == pytest.approx(_metric(one, "eval_loss")[0], rel=1e-5)
    assert _metric(folder, "loss") == pytest.approx(_metric(one, "loss")[:2], rel=1e-5)
    trace = read_trace(folder)
    stages = {(span.rank, span.action.stage) for span in trace.timeline(2).spans if span.action is not None}
    assert stages == {(0, 0), (1, 1), (0, 2), (1, 3)}


def _metric(folder: Path, key: str) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line[key] for line in map(json.loads, lines) if key in line]


@pytest.mark.parametrize(
    ("schedule", "num_layers", "step_ms", "bubble"),
    [("1f1b", 4, 198, 3 / 11), ("interleaved-1f1b", 8, 342, 3 / 19), ("dualpipe", 4, 150, 1 / 25)],
)
def test_an_emulated_run_keeps_to_its_costs(
    schedule: str, num_layers: int, step_ms: int, bubble: float, tmp_path: Path
) -> None:
    """6 ms forward and 12 ms backward a stage, p=4, m=8. One stage a rank: (8 + 3) * 18 = 198 ms and 27.3 % bubble, and
    a little. Two: (8 + 3 / 2) * 36 = 342 ms and 15.8 %. Two streams: 25 slots of 6 ms, of which one is idle.

    Other work on the machine makes steps longer, by any factor, and ranks wait; so the step with the least bubble is
    held against the prediction. Under a load of four times the cores it is within 0.07.
    """
    layer = {"forward_ns": 6_000_000, "backward_input_ns": 6_000_000, "backward_weight_ns": 6_000_000}
    layers = [{"name": f"l{i}", **layer, "output_bytes": 4096} for i in range(num_layers)]
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"layers": layers}))
    more = sets(f"train.run_dir={tmp_path / 'r'}", "train.steps=6", "pipeline.stages=4", "pipeline.microbatches=8")
    ran = fullbore("train", "--emulate", str(costs), *more, *sets(f"pipeline.schedule={schedule}"), "--json")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    assert answer["predicted_step_ns"] == step_ms * 1_000_000
    assert answer["bubble_fraction_predicted"] == pytest.approx(bubble)
    assert answer["step_ns"] >= step_ms * 1_000_000
    assert answer["loss"] is None
    trace = read_trace(tmp_path / "r")
    least = min(bubble_of(trace.timeline(step)).bubble_fraction for step in trace.steps)
    predicted = answer["bubble_fraction_predicted"]
    assert 0.5 * predicted < least < predicted + 0.1


def test_accumulation_is_one_step_in_trace_and_prediction(tmp_path: Path) -> None:
    """Three passes a step: microbatches are numbered on, and the prediction is three passes too."""
    layer = {"forward_ns": 4_000_000, "backward_input_ns": 4_000_000, "backward_weight_ns": 4_000_000}
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"layers": [{"name": f"l{i}", **layer, "output_bytes": 64} for i in range(2)]}))
    folder = tmp_path / "r"
    more = sets(f"train.run_dir={folder}", "train.steps=2", "pipeline.microbatches=2", "batch.accumulation=3")
    ran = fullbore("train", "--emulate", str(costs), *more)
    assert ran.code == 0, ran.err
    computed = read_trace(folder).timeline(2).on(0, Row.COMPUTE)
    assert sorted(str(span.action) for span in computed) == sorted(f"0{kind}{m}" for kind in "FB" for m in range(6))
    assert "predicted 108.0 ms" in ran.out  # 3 passes of (2 + 1) slots of 12 ms
    assert read_costs(folder / "profile.json")[0].forward_ns == 4_000_000


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    more = sets(f"train.run_dir={tmp_path / 'r'}", "train.steps=5000")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "fullbore", "train", *OPTIONS, *more],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    metrics = tmp_path / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert metrics.exists()
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    deadline = time.monotonic() + 10
    while processes_of(launcher.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(launcher.pid)


def test_an_impatient_interrupt_at_the_start_is_one_line(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole group of a terminal, the server that is importing torch among it."""
    launcher = subprocess.Popen(
        [sys.executable, "-m", "fullbore", "train", *OPTIONS, *sets(f"train.run_dir={tmp_path / 'r'}")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(processes_of(launcher.pid)) < 3 and time.monotonic() < deadline:  # the launcher, a tracker and the server
        time.sleep(0.02)
    time.sleep(0.2)
    for _ in range(3):
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGINT)
        time.sleep(0.05)
    _, err = launcher.communicate(timeout=30)
    assert (launcher.returncode, err) == (130, "starting 2 ranks\nfullbore: interrupted\n")
    deadline = time.monotonic() + 10
    while processes_of(launcher.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(launcher.pid)
