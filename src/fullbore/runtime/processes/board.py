"""ProgressBoard: what every rank is doing right now, in memory that outlives the rank.

A killed or stuck process cannot say where it was. So each rank writes what it does into its slot of a small shared
file (an action of a step, or a phase such as "reading the data"), and whoever is left reads it. One write costs
about a microsecond.

A slot holds the last word and the one before it, and a byte whose lowest bit says which is which. A word is written
over the older one, and only then the byte is. So a rank that is stopped or killed in the middle of a word leaves its
last whole one, and nobody reads half of one.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["START_UP_FACTOR", "BoardEntry", "ProgressBoard", "evaluation_name", "step_name"]

START_UP_FACTOR = 5
"""Reading the data, measuring and building may take this many times ``train.timeout_s``: 5 minutes by default."""

_WORD = struct.Struct("<qqd?63s48s")
_SLOT_BYTES = 8 + 2 * _WORD.size
"""The byte that counts words, modulo 256, stands first."""


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """One rank's last word. ``since_ns`` is on the machine's monotonic clock, 0 where the rank never wrote."""

    sequence: int
    """How many words this rank has written, this one among them; in start-up the same for all that got as far."""

    since_ns: int
    patience_s: float | None
    """How long this may take before the rank counts as stuck; None: as long as it likes."""

    waiting: bool
    """In a wait for another rank, rather than working."""

    doing: str
    """An action (``1F2``), a noun with its article (``the optimizer``) or a gerund (``reading the data``)."""

    period: str
    """``step 3``; empty outside steps and evaluations."""

    def describe(self) -> str:
        """``1F2 of step 3``; also for a rank that never started."""
        if not self.doing:
            return "starting"
        return f"{self.doing} of {self.period}" if self.period else self.doing

    def where(self) -> str:
        """With its preposition: ``in 1F2 of step 3``, ``while reading the data``."""
        return f"while {self.describe()}" if self._is_gerund else f"in {self.describe()}"

    def has_been(self) -> str:
        """What follows "has been": ``in 1F2 of step 3``, ``reading the data``."""
        return self.describe() if self._is_gerund else self.where()

    @property
    def _is_gerund(self) -> bool:
        return self.describe().split(" ", 1)[0].endswith("ing")


class ProgressBoard:
    """A file of slots of fixed size, one a rank. Several processes map it; each writes only its own slot.

    ``timeout_s``: what one action or phase of a step may take; None: nobody watches.
    """

    def __init__(self, path: Path, *, num_ranks: int, timeout_s: float | None = None) -> None:
        size = _SLOT_BYTES * num_ranks
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._timeout_s = timeout_s
        self._times = 1
        self._sequence = 0

    def allow(self, times: int) -> None:
        """An action or phase of a step may take this many times ``timeout_s`` from now on."""
        self._times = times

    def write(self, rank: int, *, period: str, doing: str, waiting: bool) -> None:
        """An action of a step or an evaluation (``period``), or a phase of it."""
        self._put(rank, None if self._timeout_s is None else self._times * self._timeout_s, waiting, doing, period)

    def start_up(self, rank: int, doing: str, *, waiting: bool = False) -> None:
        """A phase before the first step."""
        self._put(rank, None if self._timeout_s is None else START_UP_FACTOR * self._timeout_s, waiting, doing, "")

    def unhurried(self, rank: int, doing: str) -> None:
        """A phase that may take as long as it likes, while no other rank waits."""
        self._put(rank, None, False, doing, "")

    @contextmanager
    def waiting(self, rank: int) -> Iterator[None]:
        """Inside, the rank waits for others in what it is doing. One that waits in vain stays a waiting one."""
        before = self.read(rank)
        self._put(rank, before.patience_s, True, before.doing, before.period)
        yield
        self._put(rank, before.patience_s, before.waiting, before.doing, before.period)

    def read(self, rank: int) -> BoardEntry:
        slot = rank * _SLOT_BYTES
        while True:
            count = self._memory[slot]
            at = _place(rank, count)
            raw = self._memory[at : at + _WORD.size]
            if self._memory[slot] == count:  # else newer words came meanwhile, maybe over this one
                break
        sequence, since_ns, patience_s, waiting, doing, period = _WORD.unpack(raw)
        return BoardEntry(sequence, since_ns, patience_s or None, waiting, _text(doing), _text(period))

    def close(self) -> None:
        self._memory.close()

    def _put(self, rank: int, patience_s: float | None, waiting: bool, doing: str, period: str) -> None:
        self._sequence += 1
        told = (doing.encode()[:63], period.encode()[:48])
        slot = rank * _SLOT_BYTES
        count = (self._memory[slot] + 1) % 256
        _WORD.pack_into(
            self._memory,
            _place(rank, count),
            self._sequence,
            time.monotonic_ns(),
            patience_s or 0.0,
            waiting,
            *told,
        )
        self._memory[slot] = count


def step_name(step: int) -> str:
    """``step 3``, counted from 1."""
    return f"step {step}"


def evaluation_name(step: int) -> str:
    """The evaluation that comes before step ``step``."""
    return f"the evaluation after step {step - 1}" if step > 1 else "the evaluation before step 1"


def _place(rank: int, count: int) -> int:
    """Where the word of that count stands."""
    return rank * _SLOT_BYTES + 8 + count % 2 * _WORD.size


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
