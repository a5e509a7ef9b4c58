"""Patience: how long ranks wait for each other in a call of a pipeline.

Compiled layers are compiled when they are first called, in training and once more in evaluation, and not on all ranks
in the same time: that call may take as long as a start-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.board import START_UP_FACTOR, ProgressBoard

__all__ = ["Patience"]


class Patience:
    """``timeout_s``, or in the first call of what compiles the time of a start-up."""

    def __init__(self, timeout_s: float, *, compiles: bool, mesh: Mesh, board: ProgressBoard | None) -> None:
        self._timeout_s = timeout_s
        self._mesh = mesh
        self._board = board
        self._to_compile = {"step", "evaluate"} if compiles else set()

    @contextmanager
    def during(self, call: str) -> Iterator[float]:
        """For ``step`` or ``evaluate``: the seconds. The mesh and whoever watches the board are told."""
        if call not in self._to_compile:
            yield self._timeout_s
            return
        self._mesh.start_up()
        if self._board is not None:
            self._board.allow(START_UP_FACTOR)
        yield START_UP_FACTOR * self._timeout_s
        self._to_compile.remove(call)
        self._mesh.begin_steps()
        if self._board is not None:
            self._board.allow(1)
