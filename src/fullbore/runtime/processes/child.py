"""Child: a rank's process as its parent sees it. What it said last, whether it stands still, what is left of it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from fullbore.errors import FullboreError
from fullbore.runtime.processes.board import BoardEntry
from fullbore.runtime.processes.evidence import ask_stack, is_stopped, last_stack
from fullbore.runtime.processes.verdict import Outcome, is_symptom

__all__ = ["Child"]

_MARGIN_S = 2.0
"""Beyond a rank's own patience: whoever waits for it speaks first, and says what for."""

_FIRST_WORD_S = 300.0
"""For importing what the rank runs, before it has written anything on the board."""


@dataclass(slots=True)
class Child:
    """One of several. The parent sets what it hears."""

    rank: int
    process: BaseProcess
    pipe: Connection
    stack: Path
    """Where it writes its stack when it is asked to, or crashes."""

    started_ns: int
    state: Literal["running", "done", "failed", "gone"] = "running"
    result: Any = None
    error: FullboreError | None = None
    ended_ns: int | None = None

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def explains(self) -> bool:
        """Is its end a cause, rather than a symptom of another's?"""
        return self.state == "gone" or (self.error is not None and not is_symptom(self.error))

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "it was started"
        return self.process.pid

    def stands_still(self, entry: BoardEntry) -> bool:
        """Has it been at one thing for longer than it may? One that waits mostly gives up by itself before."""
        age_s = (time.monotonic_ns() - (entry.since_ns or self.started_ns)) / 1e9
        if not self.running:
            return False
        if not entry.since_ns:
            return age_s > _FIRST_WORD_S
        return entry.patience_s is not None and age_s > entry.patience_s + _MARGIN_S

    def outcome(self, entry: BoardEntry, *, ask: bool, memory_ran_out: bool) -> Outcome:
        """All that is known of it. ``ask``: where it works and does not wait, let it say where."""
        ending, stack = "", None
        stopped = self.running and is_stopped(self.pid)
        if self.state == "gone":
            self.process.join(timeout=1.0)
            ending, stack = _ending(self.process.exitcode), last_stack(self.stack)
        elif self.running and ask and not (entry.waiting or stopped):
            stack = ask_stack(self.pid, self.stack)
        return Outcome(
            self.rank,
            self.state,
            entry,
            ended_ns=self.ended_ns,
            error=self.error,
            ending=ending,
            stack=stack,
            stopped=stopped,
            overdue=self.stands_still(entry),
            memory_ran_out=memory_ran_out,
        )

    def end(self, *, patience_s: float) -> None:
        """Nothing is left of it afterwards. A stopped process can only be killed."""
        self.process.join(timeout=max(0.0, patience_s))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        with suppress(ProcessLookupError, PermissionError):  # mostly nobody is left in its group
            os.killpg(self.pid, signal.SIGKILL)
        self.pipe.close()


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    return f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
