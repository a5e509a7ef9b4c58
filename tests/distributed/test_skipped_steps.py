"""`fullbore train` when gradients are not finite: what it says, counts and ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.command import TINY_LLAMA, Ran, fullbore


def train(folder: Path, *pairs: str, json_answer: bool = False) -> tuple[Ran, list[dict[str, Any]]]:
    """The run and its lines of metrics."""
    sets = (
        f"train.run_dir={folder}",
        "train.eval_every=0",
        "pipeline.microbatches=4",
        "optimizer.warmup_steps=0",
        *pairs,
    )
    options = [part for pair in sets for part in ("--set", pair)]
    ran = fullbore("train", *TINY_LLAMA, *options, *(("--json",) if json_answer else ()))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return ran, [json.loads(line) for line in lines]


def test_a_run_that_only_skips_ends_and_says_why(tmp_path: Path) -> None:
    """Its weights are infinite after one step of this learning rate; each skipped step is counted."""
    ran, metrics = train(tmp_path / "r", "train.steps=40", "optimizer.lr=1e30", "optimizer.name=sgd")
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert "no rank updated its weights" in ran.err
    last = ran.err.strip().splitlines()[-1]
    assert "10 steps in a row had a loss or a gradient that is not finite (step " in last
    assert "Lower optimizer.lr" in last
    counted = [line["skipped_steps"] for line in metrics]
    assert counted[-10:] == list(range(1, 11))
    assert len(counted) < 15


def test_float16_trains_and_its_scale_and_skipped_steps_are_in_metrics_answer_and_summary(tmp_path: Path) -> None:
    ran, metrics = train(tmp_path / "r", "train.steps=6", "model.dtype=float16", "optimizer.lr=0.01")
    assert ran.code == 0, ran.err
    skipped = metrics[-1]["skipped_steps"]
    assert metrics[0]["loss_scale"] == 2.0**16
    assert metrics[-1]["loss_scale"] >= 2.0 ** (16 - skipped)
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert ("steps: a gradient was not finite" in ran.out) is (skipped > 0)
