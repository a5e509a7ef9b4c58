"""Evidence: what the machine still knows about a rank that cannot speak for itself.

A rank that sleeps in somebody's layer answers a signal with its stack, even where it holds the interpreter's lock;
one that crashes leaves its stack behind; the kernel says whether a process is stopped, and whether it has ended
processes for lack of memory. Nothing here needs the rank's cooperation, and all of it may be missing.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fullbore.runtime.processes.blame import whose

__all__ = ["ask_stack", "is_stopped", "keep_stack", "last_stack", "oom_kills"]

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_ANSWER_S = 2.0


def keep_stack(path: Path) -> None:
    """Called by a rank: from now on a crash, or SIGUSR1, writes its main thread's stack into ``path``."""
    file: Any = path.open("wb")  # faulthandler keeps it open
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=file, all_threads=False)


def ask_stack(pid: int, path: Path) -> str | None:
    """Where the rank of this process is now: ``model.py:12 in forward``. None where it does not answer."""
    if not path.exists():  # without a handler the signal would end it
        return None
    before = path.stat().st_size
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _ANSWER_S
    while path.stat().st_size == before:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    while path.stat().st_size != before:  # the frames follow one by one
        before = path.stat().st_size
        time.sleep(0.05)
    return last_stack(path)


def last_stack(path: Path) -> str | None:
    """The place that a file written by `keep_stack` names; None where nothing was written."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    last = text[text.rfind("most recent call first") :]
    frames = [(found["file"], int(found["line"]), found["name"]) for found in _FRAME.finditer(last)]
    return whose(frames) if frames else None


def is_stopped(pid: int) -> bool:
    """By SIGSTOP, a terminal or a debugger. False where the system does not say."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since it started; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
