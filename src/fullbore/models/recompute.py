"""Recomputation: a layer keeps only its input and runs its forward again when the backward needs it.

Non-reentrant `torch.utils.checkpoint`, around the forward of single layers. (The re-entrant form gives no
gradients where a layer's inputs need none, as the first block's, and fails when a backward is asked for chosen
inputs: fairseq #3583.) Each layer's recomputation is entered through a context of the caller's, so that it shows
as a span of its own.

Where the runtime says so (`fullbore.models.checkpoints`), the second forward does not wait for the backward: it runs as
an action of its own before, and the backward finds what it has made.

The second forward changes no state: a normalisation's running statistics count each microbatch once, and a layer that
changes any other buffer is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fullbore.config.layer_names import require_layers
from fullbore.errors import ModelError
from fullbore.models.checkpoints import Watch
from fullbore.models.layered import BuiltStage
from fullbore.models.randomness import KeyedForward
from fullbore.models.statistics import may_hold_statistics

__all__ = ["apply_recompute", "require_free"]

Around = Callable[[str], AbstractContextManager[None]]


def require_free(parts: Mapping[str, Iterable[nn.Module]], *, ours: Collection[nn.Module]) -> None:
    """Raises ModelError for a module that another pipeline of this process has wrapped and not given back: it would
    take its wrappers off in the middle of this one's, and its keys and spans would be used by both.

    Args:
        parts: by the name of the layer.
        ours: modules that this pipeline has wrapped before, for another of its stages.
    """
    for layer, modules in parts.items():
        for module in modules:
            if module not in ours and isinstance(vars(module).get("forward"), KeyedForward | _Recomputed):
                raise ModelError(
                    f"layer {layer!r} is in another pipeline of this process; close() that one before another is built "
                    "of the same module, or give each a copy of its own"
                )


def apply_recompute(
    stage: BuiltStage, layers: Collection[str], *, around: Around, watch: Watch | None = None
) -> Callable[[], None]:
    """Make the named layers of ``stage`` recompute. Parameter names and the forward's values stay as they are.

    One extra forward per layer and microbatch, under the random state of the first; none without gradients. Returns
    what takes it back.

    Args:
        stage: changed in place: its layers' own ``forward`` is wrapped.
        layers: names among ``stage.layers``.
        around: layer name -> context entered around each recomputation. It sees no exception when PyTorch ends a
            recomputation early because everything needed is there.
        watch: through which recomputations are run before the backward comes to them; without, none is.

    Raises:
        ConfigError: a name that is not a layer of the stage.
        ModelError: a layer that is not one module call.
    """
    require_layers(layers, layer_names=stage.layers, setting="recompute")
    for name in layers:
        if name not in stage.layer_modules:
            able = ", ".join(stage.layer_modules) or "none of its layers"
            raise ModelError(f"layer {name!r} is not one module and cannot be recomputed; this stage can: {able}")
    replaced: dict[nn.Module, Any] = {}
    for name in layers:
        module = stage.layer_modules[name]
        before = vars(module).get("forward")
        if isinstance(before, _Recomputed):
            before = before.before
            del module.forward
        replaced[module] = before
        module.forward = _Recomputed(module, before, name, around, watch)

    def undo() -> None:
        for module, before in replaced.items():
            if before is None:
                vars(module).pop("forward", None)
            else:
                module.forward = before

    return undo


class _Recomputed:
    """A layer's forward that keeps only its input."""

    def __init__(
        self,
        module: nn.Module,
        before: Callable[..., Any] | None,
        name: str,
        around: Around,
        watch: Watch | None,
    ) -> None:
        """``before``: what stood in the way of the module's own forward, if anything."""
        self.before = before
        self._inner = before if before is not None else module.forward
        self._module = module
        self._name = name
        self._around = around
        self._watch = watch
        self._state = [
            (part, key) for part in module.modules() if not may_hold_statistics(part) for key in part._buffers
        ]

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        """A copy of the module is in no pipeline."""
        return copy.deepcopy(self._inner, memo)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._inner(*args, **kwargs)
        versions = self._versions()
        replays = isinstance(self._inner, KeyedForward) and self._inner.replays
        watch, run = self._watch, self._inner
        if watch is not None and watch.checkpoints is not None:
            run = watch.checkpoints.watched(run, watch.anchor)
        output = checkpoint(
            run,
            *args,
            use_reentrant=False,
            preserve_rng_state=not replays,
            context_fn=self._contexts,
            **kwargs,
        )
        for (part, key), before, after in zip(self._state, versions, self._versions(), strict=True):
            if before != after:
                raise ModelError(
                    f"layer {self._name!r} changes its buffer {key!r} ({type(part).__name__}) when it runs, and "
                    "recomputation would change it again; leave this layer out of recompute"
                )
        return output

    def _versions(self) -> list[tuple[int, int]]:
        found = []
        for part, key in self._state:
            buffer = part._buffers.get(key)
            found.append((id(buffer), -1 if buffer is None else buffer._version))
        return found

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _Quiet(self._name, self._enter_again)

    @contextmanager
    def _enter_again(self, name: str) -> Iterator[None]:
        with self._around(name), _statistics_kept(self._module):
            yield


@contextmanager
def _statistics_kept(module: nn.Module) -> Iterator[None]:
    """Inside, normalisations count into copies of their running statistics."""
    held: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
    for part in module.modules():
        if may_hold_statistics(part) and part.training:
            held.append((part, dict(part._buffers)))
            part._buffers.update({key: None if b is None else b.clone() for key, b in part._buffers.items()})
    try:
        yield
    finally:
        for part, buffers in held:
            part._buffers.update(buffers)


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
