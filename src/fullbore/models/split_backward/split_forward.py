"""How a module whose backward is split runs: the operation of its `WeightSplit` in place of its forward.

What the weights' gradients need is queued when the gradient of the output comes by, on the way of the input gradient's
backward; `fullbore.models.split_backward.weight_queue` works it off later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_contract import checked_gradients, checked_run, is_own
from fullbore.models.split_backward.weight_queue import WeightQueue
from fullbore.models.split_backward.weight_split import Given, OperationSplit, WeightSplit

__all__ = ["SplitForward", "at_once"]

_AT_ONCE: ContextVar[bool] = ContextVar("fullbore_weight_gradients_at_once", default=False)


@contextmanager
def at_once() -> Iterator[None]:
    """Modules called inside have a whole backward: for a loss in chunks, whose point is that the gradients of all
    logits never exist together."""
    token = _AT_ONCE.set(True)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


class SplitForward:
    """A module's forward whose backward is split."""

    def __init__(self, split: WeightSplit, inner: Callable[..., Any], deferral: Deferral) -> None:
        self.split = split
        self.inner = inner
        self._deferral = deferral
        self._by_hand = isinstance(split, OperationSplit)
        self._use: _Use | None = None
        """None: autograd must see to the weights as they are."""
        self.look_up()
        deferral.look_up.append(self.look_up)

    def look_up(self) -> None:
        """See which weights the module has and which of them train."""
        module, names = self.split.module, self.split.parameters
        self._use = None
        if all(is_own(module, name) and _is_plain(module._parameters.get(name)) for name in names):
            use = _Use(self.split, self._deferral)
            self._use = use if use.trained else None

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        """A copy of the module is in no pipeline."""
        return copy.deepcopy(self.inner, memo)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        use = self._use
        if (
            use is None
            or not self._deferral.splits
            or len(args) != 1
            or kwargs
            or not isinstance(args[0], Tensor)
            or not torch.is_grad_enabled()
            or _AT_ONCE.get()
        ):
            return self.inner(*args, **kwargs)
        (x,) = args
        given = self.split.before(x)
        if given is None or (torch.is_autocast_enabled(x.device.type) and not self.split.under_autocast):
            return self.inner(x)
        anchor = None if given.requires_grad else self._deferral.anchor
        if self._by_hand:
            return self.split.after(_operation(use, given, anchor), x)
        output, kept = checked_run(type(self.split), given, self.split.run(given, use.weights, use.wanted))
        if output.requires_grad and not output._is_view() and _saved_hooks() is None:
            output.register_hook(_Note(use, kept))  # type: ignore[no-untyped-call]
        else:
            output = _tap(use, output, anchor, *kept)
        return self.split.after(output, x)


class _Use:
    """A module with the weights that it has for a step."""

    __slots__ = ("_by_hand", "deferral", "keys", "split", "trained", "wanted", "weights")

    def __init__(self, split: WeightSplit, deferral: Deferral) -> None:
        held = [split.module._parameters.get(name) for name in split.parameters]
        self.split = split
        self.deferral = deferral
        self.wanted = tuple(weight is not None and weight.requires_grad for weight in held)
        self.trained = tuple(weight for weight in held if weight is not None and weight.requires_grad)
        self.keys = tuple(map(id, self.trained))
        self._by_hand = isinstance(split, OperationSplit)
        self.weights: Given = tuple(None if weight is None else weight.detach() for weight in held)

    def gradients(self, gradient: Tensor, kept: Sequence[Tensor]) -> Sequence[Tensor]:
        made = self.split.weight_gradients(gradient, kept, self.wanted)
        if self._by_hand:
            return made
        kind, names = type(self.split), self.split.parameters
        return checked_gradients(
            kind, made, of=(gradient, *kept), names=names, wanted=self.wanted, weights=self.trained
        )

    def queue(self) -> WeightQueue:
        """Where the backward that runs now leaves weight gradients.

        Raises:
            ModelError: it is none of the schedule's, or is recorded to be differentiated once more. The weights are no
                part of this graph, so their share of such a gradient would be lost.
        """
        queue = self.deferral.queue
        if queue is None or torch.is_grad_enabled():
            kind = type(self.split.module).__name__
            raise ModelError(
                f"the backward of this {kind} is split, and something differentiates it besides the schedule "
                "(torch.autograd.grad or backward inside of a layer or loss), which needs a whole one; call "
                f"fullbore.register_weight_split({kind}, None) before the pipeline is built, or use a schedule "
                "without W"
            )
        return queue


class _Note:
    """Called with the gradient of an operation's output."""

    __slots__ = ("_kept", "_use")

    def __init__(self, use: _Use, kept: Sequence[Tensor]) -> None:
        self._use = use
        self._kept = kept

    def __call__(self, gradient: Tensor) -> None:
        self._use.queue().add((self._use, gradient, self._kept))


class _Operation(torch.autograd.Function):
    """The operation of an `OperationSplit`. Its weights are no inputs: autograd would run their hooks at I, without a
    gradient."""

    @staticmethod
    def forward(ctx: Any, use: _Use, x: Tensor, anchor: Tensor | None) -> Tensor:
        """``anchor``: what makes the output need a gradient where x needs none."""
        split = use.split
        assert isinstance(split, OperationSplit)
        kept = split.keep(x, use.wanted)
        pack = None if use.deferral.queue is None else _recomputation()
        if pack is None:
            ctx.save_for_backward(*kept)
        else:
            for tensor in kept:
                pack(tensor)
        ctx.use = use
        if torch.is_autocast_enabled(x.device.type):
            ctx.weights = tuple(None if weight is None else weight.to(x.dtype) for weight in use.weights)
            with torch.autocast(x.device.type, enabled=False):
                output = split.compute(x, ctx.weights)
        else:
            ctx.weights = use.weights
            output = split.compute(x, use.weights)
        return output.detach() if output._is_view() else output  # so that the next layer may overwrite it

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        use: _Use = ctx.use
        queue = use.queue()
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()  # both halves would
        queue.add((use, gradient, ctx.saved_tensors))
        if ctx.needs_input_grad[1]:
            split = use.split
            assert isinstance(split, OperationSplit)
            return None, split.input_gradient(gradient, ctx.weights), None
        return None, None, None


_operation: Callable[..., Tensor] = _Operation.apply


class _Tap(torch.autograd.Function):
    """The same as an operation of its own, for what a hook cannot do. What is kept goes where autograd keeps things, so
    that a checkpoint lets go of it. The output may be a view, or need no gradient of its own: ``anchor`` makes it."""

    @staticmethod
    def forward(ctx: Any, use: _Use, output: Tensor, anchor: Tensor | None, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.use = use
        return output.detach()  # an alias that the next layer may overwrite

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queue = ctx.use.queue()
        kept = ctx.saved_tensors
        queue.add((ctx.use, gradient, kept))
        return None, gradient, None, *(None for _ in kept)


_tap: Callable[..., Tensor] = _Tap.apply


def _saved_hooks() -> object:
    """Where something (a checkpoint, an offload) wants to see what autograd keeps, and not find it in a closure."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def _recomputation() -> Callable[[Tensor], object] | None:
    """Where a checkpoint that runs again takes what it looks for, and ends once it has all. Torch's own operations give
    it before they compute, so that the last one is not computed in vain; ours would give it after."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks is None or not hooks[0].__qualname__.startswith("_recomputation_hook."):
        return None
    pack: Callable[[Tensor], object] = hooks[0]
    return pack


def _is_plain(weight: Tensor | None) -> bool:
    """Hooks on a gradient, and weights that are more than tensors (sharded, quantized), are autograd's business."""
    return weight is None or (type(weight) is nn.Parameter and not weight._backward_hooks)
