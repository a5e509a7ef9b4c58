"""Recomputation: a layer keeps only its input and runs its forward again when the backward needs it.

Non-reentrant `torch.utils.checkpoint`, around the forward of single layers. (The re-entrant form gives no
gradients where a layer's inputs need none, as the first block's, and fails when a backward is asked for chosen
inputs: fairseq #3583.) Each layer's recomputation is entered through a context of the caller's, so that it shows
as a span of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from fullbore.errors import ModelError
from fullbore.models.layered import BuiltStage

__all__ = ["apply_recompute"]

Around = Callable[[str], AbstractContextManager[None]]


def apply_recompute(stage: BuiltStage, layers: Collection[str], *, around: Around) -> Callable[[], None]:
    """Make the named layers of ``stage`` recompute. Parameter names and the forward's values stay as they are.

    One extra forward per layer and microbatch, under the random state of the first; none without gradients. Returns
    what takes it back.

    Args:
        stage: changed in place: its layers' own ``forward`` is wrapped.
        layers: names among ``stage.layers``.
        around: layer name -> context entered around each recomputation. It sees no exception when PyTorch ends a
            recomputation early because everything needed is there.

    Raises:
        ModelError: a name that is not a layer of the stage, or a layer that is not one module call.
    """
    for name in layers:
        if name not in stage.layers:
            near = difflib.get_close_matches(name, stage.layers, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(stage.layers)}"
            raise ModelError(f"no layer {name!r} to recompute in this stage; {hint}")
        if name not in stage.layer_modules:
            able = ", ".join(stage.layer_modules) or "none of its layers"
            raise ModelError(f"layer {name!r} is not one module and cannot be recomputed; this stage can: {able}")
    for name in layers:
        module = stage.layer_modules[name]
        before = vars(module).get("forward")
        inner = before.inner if isinstance(before, _Recomputed) else module.forward
        module.forward = _Recomputed(inner, name, around)

    def undo() -> None:
        for name in layers:
            vars(stage.layer_modules[name]).pop("forward", None)

    return undo


class _Recomputed:
    """A layer's forward that keeps only its input."""

    def __init__(self, inner: Callable[..., Any], name: str, around: Around) -> None:
        self.inner = inner
        self._name = name
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.inner(*args, **kwargs)
        return checkpoint(self.inner, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _Quiet(self._name, self._around)


class _Quiet(AbstractContextManager[None]):
    """Enters the caller's context anew each time, and hides from it the exception that ends a recomputation early."""

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around
        self._open: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        context = self._around(self._name)
        context.__enter__()
        self._open.append(context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context = self._open.pop()
        if kind is not None and kind.__name__ == "_StopRecomputationError":
            context.__exit__(None, None, None)
        else:
            context.__exit__(kind, error, trace)
