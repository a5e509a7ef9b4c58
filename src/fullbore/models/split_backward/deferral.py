"""Deferral: where the modules of one stage learn whether their backward is split, and which queue it fills."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

import torch

from fullbore.models.split_backward.weight_queue import WeightQueue

__all__ = ["Deferral"]


class Deferral:
    """What the modules of one stage are told.

    One object that all of them hold, and no variable of a thread: on a GPU autograd runs a backward in a thread of its
    own, and recomputation with it.
    """

    __slots__ = ("anchor", "look_up", "queue", "splits")

    def __init__(self) -> None:
        self.splits = False
        """Will the backward of what runs forward now be split? If not, it is autograd's alone."""
        self.queue: WeightQueue | None = None
        """Where the backward that runs now leaves its weight gradients."""
        self.anchor = torch.zeros(0, requires_grad=True)
        """Makes outputs need a gradient where the input needs none. Never gets one itself."""
        self.look_up: list[Callable[[], None]] = []
        """Of every module: look at the weights it has now."""

    def begin(self) -> None:
        """A step begins: weights and their hooks stay what they are until the next."""
        for look in self.look_up:
            look()

    def during(self, queue: WeightQueue | None = None) -> AbstractContextManager[None]:
        """What runs inside has a split backward, or is one that fills ``queue``."""
        return _During(self, queue)


class _During(AbstractContextManager[None]):
    __slots__ = ("_deferral", "_queue")

    def __init__(self, deferral: Deferral, queue: WeightQueue | None) -> None:
        self._deferral = deferral
        self._queue = queue

    def __enter__(self) -> None:
        self._deferral.splits, self._deferral.queue = True, self._queue

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deferral.splits, self._deferral.queue = False, None
