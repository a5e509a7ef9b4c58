"""Split backward: the input gradient goes upstream at once, the weight gradient fills a gap later.

Penghui Qi, Xinyi Wan, Guangxing Huang, Min Lin: Zero Bubble Pipeline Parallelism, arXiv 2401.10241. There, as here, the
operations themselves know the two halves of their backward, and the second waits in a queue.
(torch.distributed.pipelining cuts autograd's graph instead: 2.2 to 3.3 times the time of a whole backward for small
layers, several recomputations of a layer under a checkpoint, and hooks that do not run: pytorch #166577, #180952,
torchtitan #773.)

    y = x W'      I: dx = dy W         needs W
                  W: dW = dy' x        needs x and dy, which are kept until then

How: the module's operation is run on weights that record nothing, so that autograd's backward is the one for the input
and nothing else. What the gradient of the weights needs is noted in the forward (x) and as the gradient of the output
comes by (dy). So input gradients are autograd's own, and weight gradients are the operation that it would run.

Which classes are split is a registry (`fullbore.models.split_backward.weight_registry`), open to others:

    class ScaleSplit(WeightSplit):
        parameters = ("weight",)

        def run(self, x, weights, wanted):
            return x * weights[0], (x,)

        def weight_gradients(self, gradient, kept, wanted):
            return ((gradient * kept[0]).flatten(0, -2).sum(0),)

    fullbore.register_weight_split(Scale, ScaleSplit)

A class without an entry, and whatever an entry cannot take, is left to autograd, which does the full backward at `I`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

__all__ = ["Given", "OperationSplit", "WeightSplit"]

Given = tuple[Tensor | None, ...]
"""A module's weights in the order of `WeightSplit.parameters`, None where it has None under that name."""


class WeightSplit:
    """How one class of modules with one tensor as input computes, in parts. One object for each module."""

    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    """Names of the module's own weights that the operation uses. A module where one of them is anything but a
    parameter of its own or None (a buffer, say, or a parametrization) is left to autograd."""

    under_autocast: ClassVar[bool] = True
    """False: under autocast the backward is whole. True: `run` casts as the module does, and `weight_gradients` takes
    what was kept in another type than the gradient."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def before(self, x: Tensor) -> Tensor | None:
        """The operation's input, made from the module's; None: leave this call to autograd."""
        return x

    def run(self, x: Tensor, weights: Given, wanted: Sequence[bool]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(output, what `weight_gradients` needs of the forward). Recorded by autograd, ``weights`` are without
        gradients; ``wanted`` says of each whether it trains."""
        raise NotImplementedError

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        """The module's output, made from the operation's; ``x`` is the module's input."""
        del x
        return output

    def weight_gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
        """New tensors, one for each weight that is wanted and of its shape, from the gradient of the output of
        `run`."""
        raise NotImplementedError


class OperationSplit(WeightSplit):
    """One whose input gradient is written by hand as well: the module's whole backward is one step of autograd's, which
    is quicker for what there is much of. `compute` is not recorded. What it gives is not checked."""

    def compute(self, x: Tensor, weights: Given) -> Tensor:
        """The output."""
        raise NotImplementedError

    def keep(self, x: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
        """What `weight_gradients` needs of the forward, known before it."""
        return (x,)

    def run(self, x: Tensor, weights: Given, wanted: Sequence[bool]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.compute(x, weights), self.keep(x, wanted)

    def input_gradient(self, gradient: Tensor, weights: Given) -> Tensor:
        """The gradient of ``x``, from that of the output, which is contiguous here."""
        raise NotImplementedError
