"""Checkpoints that run again when they are told to, and not only when a backward comes to them.

A layer under `torch.utils.checkpoint` runs its forward again once the backward asks for the first tensor that the layer
has saved. So each checkpoint here saves one tensor more, of no size and before all others. Whoever asks for that one
has the layer run again, and what it saves then is kept for the backward:

    forward      checkpoint( mark, layer )       nothing is kept but the layer's input
    run          mark?  ->  layer again          what the backward needs is there
    backward     layer's tensors?                they are taken, and let go of one by one

The second forward is the checkpoint's own, so it is the same one, bit for bit, whoever asks for it. That the backward
finds what was made before it is what a `GraphExecGroup` is for: the backwards of a group recompute once (pytorch PR
#166536, PyTorch 2.10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor

from fullbore.errors import ModelError

__all__ = ["Checkpoints", "Watch", "require_checkpoints"]


def require_checkpoints() -> None:
    """Raises `ModelError` where this PyTorch cannot keep what has run again for a backward that comes later."""
    if "GraphExecGroup" not in torch_checkpoint.__all__:
        raise ModelError(
            "recomputation ahead of the backward needs torch.utils.checkpoint.GraphExecGroup, which PyTorch has from "
            f"2.10 on (this is {torch.__version__}); update it, or leave recompute_ahead at false"
        )


class Checkpoints:
    """Those of one microbatch on one stage, in the order of its forward."""

    __slots__ = ("_group", "_marks")

    def __init__(self) -> None:
        self._marks: list[Tensor] = []
        self._group: AbstractContextManager[object] = torch_checkpoint.GraphExecGroup()

    def watched(self, layer: Callable[..., Any], anchor: Tensor) -> Callable[..., Any]:
        """A layer to put under a checkpoint; `run` will run it again."""
        return _Watched(layer, self._marks, anchor)

    def run(self) -> None:
        """Run every layer again, as far as its backward needs it. Without effect the second time."""
        with self._group:
            for mark in self._marks:
                node: Any = mark.grad_fn
                _ = node.saved_tensors
        self._marks.clear()

    def used(self) -> AbstractContextManager[object]:
        """A backward inside finds what has run again; a layer that has not, runs now."""
        return self._group


class Watch:
    """What the recomputed layers of one stage hold: it tells them to which checkpoints a forward belongs."""

    __slots__ = ("anchor", "checkpoints")

    def __init__(self) -> None:
        self.checkpoints: Checkpoints | None = None
        """None: nobody will run them."""
        self.anchor = torch.zeros(0, requires_grad=True)
        """Makes marks a part of the graph. Never gets a gradient itself."""

    @contextmanager
    def during(self, checkpoints: Checkpoints) -> Iterator[None]:
        """Checkpoints that are made inside are among these."""
        self.checkpoints = checkpoints
        try:
            yield
        finally:
            self.checkpoints = None


class _Watched:
    """A layer that leaves a mark before it runs: in both forwards, since a checkpoint counts what is saved."""

    __slots__ = ("_anchor", "_layer", "_marks")

    def __init__(self, layer: Callable[..., Any], marks: list[Tensor], anchor: Tensor) -> None:
        self._layer = layer
        self._marks: list[Tensor] | None = marks
        self._anchor = anchor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mark = _mark(self._anchor)
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.append(mark)
        return self._layer(*args, **kwargs)


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(anchor)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise AssertionError("nothing is computed from a mark")


_mark: Callable[[Tensor], Tensor] = _Mark.apply
