"""One step of one system, timed over all ranks: they start at an agreed instant and the last one to end counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fullbore.ir.recipe import Layout
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.runtime.processes.launch import Worker
from fullbore.session.session import store_of

__all__ = ["Timed", "group", "timed"]

_START_NS = 3_000_000
"""How far ahead the common start is set: longer than agreeing on it takes."""


def group(worker: Worker) -> Mesh:
    """This rank's place in the group of a benchmark. The launcher is told not to count the minutes it takes."""
    ProgressBoard(worker.board, num_ranks=worker.num_ranks).unhurried(worker.rank, "running a benchmark")
    return Mesh(Layout(pipeline=worker.num_ranks), device=CpuDevice(), timeout_s=120.0, store=store_of(worker))


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
