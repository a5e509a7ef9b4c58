"""The split backwards of linear maps: the large ones, whose two halves take as long as each other.

Each half is the operation, on the same operands, that autograd runs for it, so gradients have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fullbore.models.split_backward.weight_split import Given, OperationSplit

__all__ = ["Conv1DSplit", "LinearSplit"]


class _MatrixSplit(OperationSplit):
    """A product of a matrix of rows `[..., in]` with the weight."""

    parameters = ("weight", "bias")

    def before(self, x: Tensor) -> Tensor | None:
        if x.dim() < 2:
            return None
        if torch.is_autocast_enabled(x.device.type) and x.is_floating_point() and x.dtype != torch.float64:
            return x.to(torch.get_autocast_dtype(x.device.type))
        return x

    def keep(self, x: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
        return (x,) if wanted[0] else ()


class LinearSplit(_MatrixSplit):
    """``y = x W' + b``, W `[out, in]`."""

    def compute(self, x: Tensor, weights: Given) -> Tensor:
        weight, bias = weights
        assert weight is not None
        if x.dim() == 2 or x.is_contiguous():
            return F.linear(x, weight, bias)
        flat = F.linear(x.flatten(0, -2), weight, bias)  # what is not recorded would not be folded
        return flat.view(*x.shape[:-1], flat.shape[-1])

    def input_gradient(self, gradient: Tensor, weights: Given) -> Tensor:
        weight = weights[0]
        assert weight is not None
        return gradient.matmul(weight)

    def weight_gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
        if gradient.dim() > 2:
            gradient = gradient.flatten(0, -2)
        if not wanted[0]:
            return (gradient.sum(0),)
        (x,) = kept
        weight = gradient.t().mm(x if x.dim() == 2 else x.flatten(0, -2))
        return (weight, gradient.sum(0)) if wanted[1] else (weight,)


class Conv1DSplit(_MatrixSplit):
    """``y = x W + b``, W `[in, out]`: the linear layer of GPT-2."""

    def compute(self, x: Tensor, weights: Given) -> Tensor:
        weight, bias = weights
        assert weight is not None
        assert bias is not None
        return torch.addmm(bias, x.view(-1, x.size(-1)), weight).view(*x.shape[:-1], weight.shape[1])

    def input_gradient(self, gradient: Tensor, weights: Given) -> Tensor:
        weight = weights[0]
        assert weight is not None
        return F.linear(gradient, weight)

    def weight_gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
        gradient = gradient.flatten(0, -2)
        if not wanted[0]:
            return (gradient.sum(0),)
        weight = kept[0].flatten(0, -2).t().mm(gradient)
        return (weight, gradient.sum(0)) if wanted[1] else (weight,)
