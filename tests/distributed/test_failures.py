"""A rank that dies, stops or raises in mid-step ends every rank, and one message names it. Real processes."""

from __future__ import annotations

import re
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.support.command import Ran, fullbore, processes_of, run

TIMEOUT_S = 4
STEP, MICROBATCH, CALL = 2, 3, 12  # 8 microbatches a step: the 12th forward is microbatch 3 of step 2


def train(fault: str, folder: Path, *more: str) -> tuple[Ran, str]:
    """Train the faulty model. Also returns a marker that every process of the run carries."""
    marker = f"FULLBORE_TEST_RUN={uuid.uuid4().hex}"
    name, value = marker.split("=")
    ran = fullbore(
        *("train", "--set", "model.factory=tests.support.faulty:model", "--set", f"train.run_dir={folder / 'run'}"),
        *("--set", "train.steps=50", "--set", f"train.timeout_s={TIMEOUT_S}", "--set", "train.eval_every=0"),
        *("--set", "data.sequence_length=16", "--set", "train.tensorboard=false"),
        *("--set", "pipeline.partition=equal", *more),
        env={"FULLBORE_TEST_FAULT": fault, name: value},
    )
    return ran, marker


def assert_ended(ran: Ran, marker: str) -> str:
    """Exit code 2, one last sentence, no traceback, and within a moment no process left. Returns the sentence."""
    assert ran.code == 2, ran.err
    assert "Traceback" not in ran.err
    deadline = time.monotonic() + 5.0
    while processes_of(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(marker)
    sentences = [line for line in ran.err.splitlines() if line.startswith("fullbore: ")]
    assert len(sentences) == 1, ran.err
    return sentences[0]


@pytest.mark.parametrize(("layer", "rank"), [(1, 0), (2, 1)])
def test_user_code_that_raises_is_named_with_rank_action_and_line(layer: int, rank: int, tmp_path: Path) -> None:
    ran, marker = train(f"raise:{layer}:{CALL}", tmp_path)
    sentence = assert_ended(ran, marker)
    assert f"rank {rank} failed in {rank}F{MICROBATCH} (forward of stage {rank}, microbatch {MICROBATCH})" in sentence
    assert f"step {STEP}: ValueError: this layer does not like the number 13" in sentence
    assert "faulty.py:" in sentence


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    ran, marker = train(f"kill:2:{CALL}", tmp_path)
    assert f"rank 1 was killed by SIGKILL in 1F{MICROBATCH} of step {STEP}" in assert_ended(ran, marker)


def test_a_stopped_rank_is_named_within_the_timeout(tmp_path: Path) -> None:
    """The neighbours only see silence; the rank that was working, not the one that waited, is to blame."""
    ran, marker = train(f"stop:2:{CALL}", tmp_path)
    sentence = assert_ended(ran, marker)
    assert f"rank 1 has been in 1F{MICROBATCH} of step {STEP}" in sentence
    # The stopped process also stops handing over what it has made, so the gradient before may be the one missed.
    assert re.search(rf"rank 0 waited {TIMEOUT_S} s in 0B[{MICROBATCH - 1}{MICROBATCH}] ", sentence), sentence
    waited = float(sentence.split(" for ")[1].split(" s ")[0])
    assert TIMEOUT_S <= waited < TIMEOUT_S + 5


def test_a_middle_rank_of_four_is_named(tmp_path: Path) -> None:
    """Both neighbours lose a connection; neither is the cause."""
    ran, marker = train(f"exit:2:{CALL}", tmp_path, "--set", "pipeline.stages=4")
    assert f"rank 2 exited with code 7 in 2F{MICROBATCH} of step {STEP}" in assert_ended(ran, marker)


def test_under_torchrun_the_failing_rank_says_where_it_was(tmp_path: Path) -> None:
    ran = run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fullbore"),
            *("train", "--set", "model.factory=tests.support.faulty:model", "--set", f"train.run_dir={tmp_path / 'r'}"),
            *("--set", "data.sequence_length=16", "--set", "train.tensorboard=false", "--set", "train.eval_every=0"),
            *("--set", "pipeline.partition=equal", "--set", f"train.timeout_s={TIMEOUT_S}"),
        ],
        env={"FULLBORE_TEST_FAULT": f"raise:2:{CALL}"},
    )
    assert ran.code != 0
    assert f"fullbore: rank 1 failed in 1F{MICROBATCH} (forward of stage 1" in ran.err


def test_a_world_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    ran = run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fullbore"),
            *("train", "--set", "pipeline.stages=3", "--set", f"train.run_dir={tmp_path / 'r'}"),
        ]
    )
    assert ran.code != 0
    assert "the configuration needs 3 processes" in ran.err
    assert "use --nproc-per-node 3" in ran.err
