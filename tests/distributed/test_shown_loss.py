"""What a user sees as the loss is the loss, whichever rank prints it. Only the last rank computes it; elsewhere users
saw -1 or None (torchtitan #547, #931, #1232; ColossalAI #5683)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.command import Ran, fullbore, run

STEPS = 3


def options(folder: Path, ranks: int) -> tuple[str, ...]:
    pairs = (
        *("model.factory=tests.support.faulty:with_weights", f"data.source={folder / 'text'}", "optimizer.lr=0.1"),
        *("data.sequence_length=16", "pipeline.partition=equal", "pipeline.microbatches=4", "train.tensorboard=false"),
        *(f"train.steps={STEPS}", "train.eval_every=3", "train.eval_batches=1", "optimizer.warmup_steps=0"),
        *(f"pipeline.stages={ranks}", f"train.run_dir={folder / 'run'}"),
    )
    return ("train", "--json", *(part for pair in pairs for part in ("--set", pair)))


def shown(ran: Ran, folder: Path) -> tuple[list[float], list[float], dict[str, float]]:
    """The losses of the log file, those printed, and the answer."""
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    printed = [float(value) for value in re.findall(rf"step \d/{STEPS}  loss (\S+)", ran.err)]
    return [line["loss"] for line in lines if "loss" in line], printed, json.loads(ran.out)


def prepared(folder: Path) -> Path:
    (folder / "text").mkdir()
    (folder / "text" / "0.txt").write_text("".join(f"line {n} {n * n % 97}\n" for n in range(900)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[float], dict[str, float]]:
    """What one process shows."""
    folder = prepared(tmp_path_factory.mktemp("alone"))
    return shown(fullbore(*options(folder, 1)), folder)


@pytest.mark.parametrize("torchrun", [False, True], ids=["launched", "torchrun"])
def test_the_loss_of_two_ranks_is_shown_as_that_of_one_process(
    torchrun: bool, alone: tuple[list[float], list[float], dict[str, float]], tmp_path: Path
) -> None:
    folder = prepared(tmp_path)
    group = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fullbore")
    ran = run([*group, *options(folder, 2)]) if torchrun else fullbore(*options(folder, 2))
    logged, printed, answer = shown(ran, folder)
    true, _, expected = alone
    assert logged == pytest.approx(true, rel=1e-5)
    assert printed == pytest.approx(true, abs=6e-5)
    assert len(set(printed)) == STEPS
    losses = ("loss", "eval_loss")
    assert [answer[key] for key in losses] == pytest.approx([expected[key] for key in losses], rel=1e-5)
