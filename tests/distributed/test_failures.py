"""A rank that dies, stops or raises ends every rank, and one message names it. Real processes.

The many other faults are in benchmarks/faults_runtime.py; what their names mean is in tests/support/faulty.py.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.support.command import Ran, fullbore, processes_of, run

TIMEOUT_S = 4
"""Where a rank has to be waited for; a busy machine starts ranks seconds apart, so the others have more."""

STEP, MICROBATCH, CALL = 2, 3, 12  # 8 microbatches a step: the 12th forward is microbatch 3 of step 2
LAYERS = {1: "[3]", 2: "[2, 2]", 3: "[2, 1, 2]"}
"""The faulty model's, so that every rank has a block with a possible fault."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text that is read in no time."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        (folder / f"{number}.txt").write_text(f"text {number} " * 2000, encoding="utf-8")
    return folder


def options(text: Path, folder: Path, ranks: int, *pairs: str) -> tuple[str, ...]:
    every = (
        *("model.factory=tests.support.faulty:model", f"data.source={text}", f"train.run_dir={folder / 'run'}"),
        *("data.sequence_length=16", "train.tensorboard=false", "train.eval_every=0", "train.steps=50"),
        *(f"pipeline.stages={ranks}", f"pipeline.partition={LAYERS[ranks]}", "train.timeout_s=30", *pairs),
    )
    return ("train", *(part for pair in every for part in ("--set", pair)))


def failing(fault: str, text: Path, folder: Path, *pairs: str, ranks: int = 2) -> str:
    """Train with the fault: exit code 2, one last sentence, no traceback, and within a moment no process left."""
    ran = fullbore(*options(text, folder, ranks, *pairs), env={"FULLBORE_TEST_FAULT": fault})
    assert ran.code == 2, ran.err
    assert "Traceback" not in ran.err
    deadline = time.monotonic() + 5.0
    while processes_of(ran.session) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(ran.session)
    sentences = [line for line in ran.err.splitlines() if line.startswith("fullbore: ")]
    assert len(sentences) == 1, ran.err
    return sentences[0]


def torchrun(*arguments: str, env: dict[str, str] | None = None) -> Ran:
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fullbore")
    return run([*command, *arguments], env=env)


@pytest.mark.parametrize("rank", [0, 1])
def test_user_code_that_raises_is_named_with_rank_action_and_line(rank: int, text: Path, tmp_path: Path) -> None:
    sentence = failing(f"raise@forward:{rank}:{CALL}", text, tmp_path)
    assert f"rank {rank} failed in {rank}F{MICROBATCH} (forward of stage {rank}, microbatch {MICROBATCH})" in sentence
    assert f"step {STEP}: ValueError: this layer does not like the number 13" in sentence
    assert "faulty.py:" in sentence


@pytest.mark.parametrize(
    ("fault", "more", "words"),
    [
        pytest.param(
            "raise@factory:1:1",
            (),
            "rank 1, while building the model: model.factory = 'tests.support.faulty:model' failed: ValueError",
            id="only one rank cannot build the model",
        ),
        pytest.param(
            "pymemory@build:1:1",
            (),
            "rank 1 failed while building its stage: out of memory: MemoryError",
            id="out of memory in building",
        ),
        pytest.param(
            f"memory@backward:1:{CALL}",
            (),
            f"rank 1 failed in 1B{MICROBATCH} (backward of stage 1, microbatch {MICROBATCH}) of step {STEP}: "
            "out of memory: RuntimeError",
            id="out of memory in a backward",
        ),
        pytest.param(
            f"kill@reduce:0:{STEP}",
            (),
            f"rank 0 was killed by SIGKILL in the reduction of the loss of step {STEP} "
            "(if nobody sent it, the machine ran out of memory: ",
            id="killed in the reduction at the end of a step",
        ),
        pytest.param(
            "raise@evaluate:1:11",
            ("train.eval_every=2", "train.eval_batches=1"),
            "rank 1 failed in 1F2 (forward of stage 1, microbatch 2) of the evaluation after step 2: ValueError",
            id="an evaluation that raises",
        ),
    ],
)
def test_every_phase_of_a_run_has_a_name(
    fault: str, more: tuple[str, ...], words: str, text: Path, tmp_path: Path
) -> None:
    assert f"fullbore: {words}" in failing(fault, text, tmp_path, *more)


def test_a_killed_rank_is_named(text: Path, tmp_path: Path) -> None:
    sentence = failing(f"kill@forward:1:{CALL}", text, tmp_path)
    assert f"rank 1 was killed by SIGKILL in 1F{MICROBATCH} of step {STEP}" in sentence


def test_a_stopped_rank_is_named_within_the_timeout(text: Path, tmp_path: Path) -> None:
    """The neighbours only see silence; the rank that was working, not the one that waited, is to blame."""
    sentence = failing(f"stop@forward:1:{CALL}", text, tmp_path, f"train.timeout_s={TIMEOUT_S}")
    assert f"rank 1 has been in 1F{MICROBATCH} of step {STEP}" in sentence
    assert "(the process is stopped" in sentence
    # The stopped process also stops handing over what it has made, so the gradient before may be the one missed.
    assert re.search(rf"rank 0 waited {TIMEOUT_S} s in 0B[{MICROBATCH - 1}{MICROBATCH}] ", sentence), sentence
    waited = float(sentence.split(" for ")[1].split(" s ")[0])
    assert TIMEOUT_S <= waited < TIMEOUT_S + 5


def test_where_nobody_waits_a_stuck_rank_is_named_all_the_same(text: Path, tmp_path: Path) -> None:
    """Alone in its pipeline, asleep in its data: only the parent that watches can tell, and where it sleeps."""
    sentence = failing("hang@draw:0:2", text, tmp_path, "train.timeout_s=2", ranks=1)
    assert re.search(
        r"rank 0 has been drawing the batch of step 2 for \d\.\d s \(\S+faulty.py:\d+ in \S+\) and was ended", sentence
    ), sentence


def test_a_middle_rank_is_named(text: Path, tmp_path: Path) -> None:
    """Both neighbours lose a connection; neither is the cause."""
    sentence = failing(f"exit@forward:1:{CALL}", text, tmp_path, ranks=3)
    assert f"rank 1 exited with code 7 in 1F{MICROBATCH} of step {STEP}" in sentence


def test_under_torchrun_the_failing_rank_says_where_it_was(text: Path, tmp_path: Path) -> None:
    ran = torchrun(*options(text, tmp_path, 2), env={"FULLBORE_TEST_FAULT": f"raise@forward:1:{CALL}"})
    assert ran.code != 0
    assert f"fullbore: rank 1 failed in 1F{MICROBATCH} (forward of stage 1" in ran.err


def test_a_world_of_the_wrong_size_is_refused(text: Path, tmp_path: Path) -> None:
    ran = torchrun(*options(text, tmp_path, 3))
    assert ran.code != 0
    assert "the configuration needs 3 processes" in ran.err
    assert "use --nproc-per-node 3" in ran.err


def test_a_port_that_is_in_use_is_named(text: Path, tmp_path: Path) -> None:
    """Without torchrun the user chooses the port, as under Slurm."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        group = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ran = fullbore(*options(text, tmp_path, 2), env=group)
    assert ran.code == 2
    assert f"in use on its machine (MASTER_ADDR:MASTER_PORT = 127.0.0.1:{port})" in ran.err
