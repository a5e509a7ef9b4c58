"""The split backwards of norms.

Each half is the operation, on the same operands, that autograd runs for it, so gradients have the same bits.

A norm's weight gradient is one pass over what a linear layer beside it reads hundreds of times. It is put off too, but
not for so few elements that putting it off takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullbore.models.split_backward.weight_split import Given, WeightSplit

__all__ = [
    "SMALLEST_NORM",
    "GemmaNormSplit",
    "GptOssNormSplit",
    "LayerNormSplit",
    "LlamaNormSplit",
    "RMSNormSplit",
    "ScaleSplit",
    "T5NormSplit",
]

_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default

SMALLEST_NORM = 1 << 16
"""Elements below which the weight gradient of a norm takes less time than what putting it off would."""


class LayerNormSplit(WeightSplit):
    """`torch.nn.LayerNorm`. Autograd's one backward operation, asked for one half at a time."""

    parameters = ("weight", "bias")
    under_autocast = False

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        options: Any = module
        self._shape = list(options.normalized_shape)
        self._eps: float = options.eps

    def before(self, x: Tensor) -> Tensor | None:
        return x if x.numel() >= SMALLEST_NORM else None

    def run(self, x: Tensor, weights: Given, wanted: Sequence[bool]) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, mean, rstd = torch.native_layer_norm(x, self._shape, weights[0], weights[1], self._eps)
        return output, (x, mean, rstd)

    def weight_gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
        x, mean, rstd = kept
        # The operation wants to be told that there are weights; their values play no part in this half.
        weights = [self.module._parameters[name] for name in self.parameters]
        made: Sequence[Tensor] = _LAYER_NORM_BACKWARD(gradient, x, self._shape, mean, rstd, *weights, [False, *wanted])
        return [one for one, wants in zip(made[1:], wanted, strict=True) if wants]


class ScaleSplit(WeightSplit):
    """``y = n W``: the end of every RMS norm. Subclasses say how n is made."""

    def before(self, x: Tensor) -> Tensor | None:
        return self.normalized(x) if x.numel() >= SMALLEST_NORM else None

    def normalized(self, x: Tensor) -> Tensor:
        """n."""
        raise NotImplementedError

    def factor(self, weight: Tensor) -> Tensor:
        return weight

    def run(self, x: Tensor, weights: Given, wanted: Sequence[bool]) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight = weights[0]
        assert weight is not None
        return x * self.factor(weight), (x,)

    def weight_gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor]:
        weight = self.module._parameters["weight"]
        assert weight is not None
        return ((gradient * kept[0]).sum_to_size(weight.shape),)


class RMSNormSplit(ScaleSplit):
    """`torch.nn.RMSNorm` where it is made of single operations: on a CPU."""

    def before(self, x: Tensor) -> Tensor | None:
        return super().before(x) if x.device.type == "cpu" else None

    def normalized(self, x: Tensor) -> Tensor:
        options: Any = self.module
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return F.rms_norm(wide, options.normalized_shape, None, options.eps)

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        return output.type_as(x)


class LlamaNormSplit(ScaleSplit):
    def normalized(self, x: Tensor) -> Tensor:
        return _normalized(x, self.module).to(x.dtype)


class GptOssNormSplit(ScaleSplit):
    def normalized(self, x: Tensor) -> Tensor:
        return _normalized(x, self.module)

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        return output.to(x.dtype)


class T5NormSplit(ScaleSplit):
    def normalized(self, x: Tensor) -> Tensor:
        options: Any = self.module
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + options.variance_epsilon)
        return x.to(options.weight.dtype) if options.weight.dtype in [torch.float16, torch.bfloat16] else x


class GemmaNormSplit(ScaleSplit):
    def factor(self, weight: Tensor) -> Tensor:
        return 1.0 + weight.float()

    def normalized(self, x: Tensor) -> Tensor:
        options: Any = self.module
        made: Tensor = options._norm(x.float())
        return made

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        return output.type_as(x)


def _normalized(x: Tensor, module: Any) -> Tensor:
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return wide * torch.rsqrt(variance + module.variance_epsilon)
