"""ProgressBoard: what every rank is doing right now, in memory that outlives the rank.

A killed or stuck process cannot say where it was. So each rank writes its current action into its slot of a
small shared file, and whoever is left reads it. One write costs about a microsecond.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BoardEntry", "ProgressBoard"]

_SLOT = struct.Struct("<qq?96s")


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """One rank's last word. ``since_ns`` is on the machine's monotonic clock."""

    step: int
    since_ns: int
    waiting: bool
    """In a wait for another rank, rather than working."""

    doing: str

    def describe(self) -> str:
        """``1F2 of step 3``; also for a rank that never started."""
        return f"{self.doing} of step {self.step}" if self.doing else "start-up"


class ProgressBoard:
    """A file of fixed slots, one a rank. Several processes map it; each writes only its own slot."""

    def __init__(self, path: Path, *, num_ranks: int) -> None:
        size = _SLOT.size * num_ranks
        if not path.exists() or path.stat().st_size < size:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)

    def write(self, rank: int, *, step: int, doing: str, waiting: bool) -> None:
        text = doing.encode()[:96]
        _SLOT.pack_into(self._memory, rank * _SLOT.size, step, time.monotonic_ns(), waiting, text)

    def read(self, rank: int) -> BoardEntry:
        step, since_ns, waiting, text = _SLOT.unpack_from(self._memory, rank * _SLOT.size)
        return BoardEntry(step, since_ns, waiting, text.rstrip(b"\0").decode(errors="replace"))

    def close(self) -> None:
        self._memory.close()
