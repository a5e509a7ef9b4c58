"""What the machine knows of a process that does not speak. Real processes, asleep, stopped and crashed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullbore.runtime.processes.evidence import ask_stack, is_stopped, last_stack, oom_kills

_RANK = """
import ctypes, re, sys, time
from pathlib import Path
from fullbore.runtime.processes.evidence import keep_stack

def layer():
    {call}

keep_stack(Path(sys.argv[1]))
print("ready", flush=True)
layer()
"""
_LINE = 7


@contextmanager
def process(call: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    script = folder / "model.py"
    script.write_text(_RANK.format(call=call))
    command = [sys.executable, str(script), str(folder / "stack")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def test_a_process_that_is_lost_in_native_code_says_where(tmp_path: Path) -> None:
    """It holds the interpreter's lock, so that nothing in Python could answer for it."""
    with process("re.match('(a+)+$', 60 * 'a' + 'b')", tmp_path) as lost:
        deadline = time.monotonic() + 10.0
        while "<module>" in (place := ask_stack(lost.pid, tmp_path / "stack") or "<module>"):  # not there yet
            assert time.monotonic() < deadline
        assert place == f"{tmp_path / 'model.py'}:{_LINE} in layer"
        assert lost.poll() is None


def test_a_crash_leaves_its_place(tmp_path: Path) -> None:
    with process("ctypes.string_at(0)", tmp_path) as crashed:
        assert crashed.wait(10) == -signal.SIGSEGV
    assert last_stack(tmp_path / "stack") == f"{tmp_path / 'model.py'}:{_LINE} in layer"


def test_a_process_that_is_stopped_is_known_as_such_and_does_not_answer(tmp_path: Path) -> None:
    with process("time.sleep(60)", tmp_path) as stopped:
        assert not is_stopped(stopped.pid)
        os.kill(stopped.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5.0
        while not is_stopped(stopped.pid) and time.monotonic() < deadline:
            pass
        assert is_stopped(stopped.pid)
        assert ask_stack(stopped.pid, tmp_path / "stack") is None


def test_a_process_without_a_handler_is_left_in_peace(tmp_path: Path) -> None:
    """The signal would end it."""
    assert ask_stack(os.getpid(), tmp_path / "none") is None
    assert last_stack(tmp_path / "none") is None


def test_the_kernel_counts() -> None:
    assert oom_kills() >= 0
