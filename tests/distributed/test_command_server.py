"""Commands that tests fork (`tests.support.command.fullbore`) are what a user starts: the same answer, nothing else."""

from __future__ import annotations

import sys
import time

import pytest

from tests.support.command import fullbore, processes_of, run


@pytest.mark.parametrize(
    "arguments",
    [
        ("schedule", "list", "--json"),
        ("train", "--set", "train.stepz=3"),
        ("verify", "--steps", "none"),
        ("schedule", "show", "1f1b", "-p", "2", "-m", "3"),
    ],
)
def test_code_stdout_and_stderr_are_those_of_a_command_that_was_started(arguments: tuple[str, ...]) -> None:
    forked = fullbore(*arguments)
    started = run([sys.executable, "-m", "fullbore", *arguments])
    assert (forked.code, forked.out, forked.err) == (started.code, started.out, started.err)
    assert forked.session != started.session


def test_what_a_command_leaves_behind_is_found() -> None:
    ran = run(["bash", "-c", "nohup sleep 60 >/dev/null 2>&1 & echo $!"])
    left = int(ran.out)
    try:
        assert processes_of(ran.session) == [left]
    finally:
        run(["kill", "-9", str(left)])
    deadline = time.monotonic() + 5
    while processes_of(ran.session) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_of(ran.session) == []


def test_a_command_that_is_broken_off_leaves_nothing_to_the_next() -> None:
    with pytest.raises(TimeoutError, match=r"the command has not ended after 0\.05 s"):
        fullbore("schedule", "compare", "-p", "64", "-m", "29", timeout_s=0.05)
    ran = fullbore("train", "--set", "train.stepz=3")
    assert ran.code == 2
    assert ran.err.startswith("fullbore: ")
