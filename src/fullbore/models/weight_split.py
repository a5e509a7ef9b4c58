"""Split backward: the input gradient goes upstream at once, the weight gradient fills a gap later.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241. There, as here, the
operations themselves know the two halves of their backward: a module's forward is replaced by an autograd function that
computes its input gradient and leaves the weight gradient in the stage's open queue. (torch.distributed.pipelining cuts
autograd's graph instead: 2.2 to 3.3 times the time of a whole backward for small layers, several recomputations of a
layer under a checkpoint, and hooks that do not run: pytorch #166577, #180952, torchtitan #773.)

    y = x W'      I: dx = dy W         needs W
                  W: dW = dy' x        needs x and dy, which are kept until then

Which classes are split is a registry (`fullbore.models.weight_registry`), open to others:

    class ScaleSplit(WeightSplit):
        parameters = ("weight",)

        def run(self, x, weights, wanted):
            return x * weights[0], (x,)

        def input_gradient(self, gradient, kept, weights):
            return gradient * weights[0]

        def weight_gradients(self, gradient, kept, wanted):
            return ((gradient * kept[0]).flatten(0, -2).sum(0),)

    fullbore.register_weight_split(Scale, ScaleSplit)

A class without an entry, and whatever an entry cannot take, is left to autograd, which does the full backward at `I`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fullbore.models.weight_queue import Deferral, Weights

__all__ = ["Given", "SplitForward", "WeightSplit", "at_once"]

Given = tuple[Tensor | None, ...]
"""A module's weights in the order of `WeightSplit.parameters`, None where it has none of that name."""


class WeightSplit:
    """How one class of modules with one tensor as input computes, in parts. One object for each module.

    All but `before` and `after` run without gradients being recorded.
    """

    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    """Names of the module's own weights that the operation uses."""

    autocast: ClassVar[Literal["lower", "as it is", "whole"]] = "whole"
    """Under autocast input and weights are cast to its type, or nothing is cast, or the backward is whole."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def before(self, x: Tensor) -> Tensor | None:
        """The operation's input, made under autograd from the module's; None: leave this call to autograd."""
        return x

    def run(self, x: Tensor, weights: Given, wanted: Sequence[bool]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(output, what the two halves of the backward need). ``wanted`` says of each weight whether it trains."""
        raise NotImplementedError

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        """The module's output, made under autograd from the operation's; ``x`` is the module's input."""
        del x
        return output

    def input_gradient(self, gradient: Tensor, kept: Sequence[Tensor], weights: Given) -> Tensor | None:
        """The gradient of ``x``, given that of the output."""
        raise NotImplementedError

    def weight_gradients(
        self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """One new tensor for each of the weights that is wanted."""
        raise NotImplementedError


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
        self._deferral = deferral
        self._inner = inner
        self._held = split.module._parameters
        nothing = (None,) * len(split.parameters)
        self._last = _Use(split, deferral, nothing, (False,) * len(nothing), None)

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        """A copy of the module is in no pipeline."""
        return copy.deepcopy(self._inner, memo)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._deferral.splits or len(args) != 1 or kwargs or not torch.is_grad_enabled() or _AT_ONCE.get():
            return self._inner(*args, **kwargs)
        use = self._use()
        (x,) = args
        if use is None or not isinstance(x, Tensor):
            return self._inner(x)
        given = self.split.before(x)
        if given is None:
            return self._inner(x)
        if torch.is_autocast_enabled(x.device.type):
            return self._under_autocast(x, given, use)
        return self.split.after(_split(use, given, None if given.requires_grad else self._deferral.anchor), x)

    def _use(self) -> _Use | None:
        """The module's weights as they are now; None if autograd must see to them."""
        last, held = self._last, self._held
        for name, known, wants in zip(self.split.parameters, last.weights, last.wanted, strict=True):
            weight = held.get(name)
            if weight is not known or (weight is not None and weight.requires_grad is not wants):
                weights = tuple([held.get(name) for name in self.split.parameters])
                wanted = tuple([weight is not None and weight.requires_grad for weight in weights])
                self._last = last = _Use(self.split, self._deferral, weights, wanted, None)
                break
        return last if True in last.wanted and all(map(_is_plain, last.weights)) else None

    def _under_autocast(self, x: Tensor, given: Tensor, use: _Use) -> Any:
        """The casts that autocast makes, by hand. In a function of ours it would keep weights that it has cast without
        a graph, and give those to whoever comes next."""
        if self.split.autocast == "whole":
            return self._inner(x)
        dtype = None
        if self.split.autocast == "lower":
            dtype = torch.get_autocast_dtype(x.device.type)
            if not given.is_floating_point() or given.dtype == torch.float64:
                return self._inner(x)
            given = given.to(dtype)
        if dtype is not None:
            use = replace(use, cast=dtype)
        with torch.autocast(x.device.type, enabled=False):
            output = _split(use, given, None if given.requires_grad else self._deferral.anchor)
        return self.split.after(output, x)


@dataclass(frozen=True, slots=True)
class _Use:
    """One call of a module. Its weights are no inputs of the function: autograd would run their hooks without a
    gradient at I, and nothing could be written at W."""

    split: WeightSplit
    deferral: Deferral
    weights: Weights
    wanted: Sequence[bool]
    cast: torch.dtype | None

    @property
    def given(self) -> Given:
        """The weights as the operation takes them."""
        if self.cast is None:
            return self.weights
        return tuple(None if weight is None else weight.to(self.cast) for weight in self.weights)


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, use: _Use, x: Tensor, anchor: Tensor | None) -> Tensor:
        """``anchor``: what makes the output need a gradient where x needs none."""
        del anchor
        output, kept = use.split.run(x, use.given, use.wanted)
        ctx.save_for_backward(*kept)
        ctx.use = use
        return output.detach() if output._is_view() else output  # so that the next layer may overwrite it

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        use: _Use = ctx.use
        kept = ctx.saved_tensors
        onward = use.split.input_gradient(gradient, kept, use.given) if ctx.needs_input_grad[1] else None
        queue = use.deferral.queue
        assert queue is not None, "a backward of operations that were split has a queue"
        queue.add(use.split, use.weights, use.wanted, kept, gradient)
        return None, onward, None


_split: Callable[..., Tensor] = _Split.apply


def _is_plain(weight: Tensor | None) -> bool:
    """Hooks on a gradient, and weights that are more than tensors (sharded, quantised), are autograd's business."""
    return weight is None or (type(weight) is nn.Parameter and not weight._backward_hooks)
