"""One step of one system, timed over all ranks: they start at an agreed instant and the last one to end counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fullbore.runtime.mesh import Mesh

__all__ = ["Timed", "timed"]

_START_NS = 3_000_000
"""How far ahead the common start is set: longer than agreeing on it takes."""


@dataclass(frozen=True, slots=True)
class Timed:
    """``result`` is what the step gave on this rank; the nanoseconds are the same on every rank."""

    result: object
    step_ns: int


def timed(step: Callable[[], object], *, mesh: Mesh) -> Timed:
    """Every rank of one machine calls this together: their monotonic clocks are one."""
    start = int(mesh.max([float(time.perf_counter_ns() + _START_NS)])[0])
    while (left := start - time.perf_counter_ns()) > 0:
        time.sleep(left / 1e9)
    result = step()
    return Timed(result, int(mesh.max([float(time.perf_counter_ns() - start)])[0]))
