"""The operations whose backward is split: linear maps, embeddings, norms.

Each half is the operation, on the same operands, that autograd runs for it, so gradients have the same bits.

A norm's weight gradient is one pass over what a linear layer beside it reads hundreds of times. It is put off too, but
not for so few elements that putting it off takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullbore.models.weight_split import Given, OperationSplit, WeightSplit

__all__ = ["SPLITS", "Conv1DSplit", "EmbeddingSplit", "LayerNormSplit", "LinearSplit", "ScaleSplit"]

_EMBEDDING_BACKWARD = torch.ops.aten.embedding_dense_backward.default
_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default


_SMALLEST_NORM = 1 << 16
"""Elements below which the weight gradient of a norm takes less time than what putting it off would."""


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


class EmbeddingSplit(WeightSplit):
    """Rows of W by number; their gradients are put together in the second half."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        options: Any = module
        self._size: int = options.num_embeddings
        self._padding: int = -1 if options.padding_idx is None else options.padding_idx
        self._by_frequency: bool = options.scale_grad_by_freq
        self._plain = options.max_norm is None and not options.sparse

    def before(self, x: Tensor) -> Tensor | None:
        return x if self._plain else None

    def run(self, x: Tensor, weights: Given, wanted: Sequence[bool]) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight = weights[0]
        assert weight is not None
        return torch.embedding(weight, x, self._padding, self._by_frequency, False), (x,)

    def weight_gradients(self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor]:
        made: Tensor = _EMBEDDING_BACKWARD(gradient, kept[0], self._size, self._padding, self._by_frequency)
        return (made,)


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
        return x if x.numel() >= _SMALLEST_NORM else None

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
        return self.normalized(x) if x.numel() >= _SMALLEST_NORM else None

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


class _RMSNormSplit(ScaleSplit):
    """`torch.nn.RMSNorm` where it is made of single operations: on a CPU."""

    def before(self, x: Tensor) -> Tensor | None:
        return super().before(x) if x.device.type == "cpu" else None

    def normalized(self, x: Tensor) -> Tensor:
        options: Any = self.module
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return F.rms_norm(wide, options.normalized_shape, None, options.eps)

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        return output.type_as(x)


class _LlamaNormSplit(ScaleSplit):
    def normalized(self, x: Tensor) -> Tensor:
        return _normalized(x, self.module).to(x.dtype)


class _GptOssNormSplit(ScaleSplit):
    def normalized(self, x: Tensor) -> Tensor:
        return _normalized(x, self.module)

    def after(self, output: Tensor, x: Tensor) -> Tensor:
        return output.to(x.dtype)


class _T5NormSplit(ScaleSplit):
    def normalized(self, x: Tensor) -> Tensor:
        options: Any = self.module
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + options.variance_epsilon)
        return x.to(options.weight.dtype) if options.weight.dtype in [torch.float16, torch.bfloat16] else x


class _GemmaNormSplit(ScaleSplit):
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


# Forwards as transformers writes them, over and over, under many names. A class is known by this code.


class _Conv1D(nn.Module):
    def forward(self: Any, x):  # type: ignore[no-untyped-def]
        size_out = x.size()[:-1] + (self.nf,)  # noqa: RUF005
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        x = x.view(size_out)
        return x


class _LlamaNorm(nn.Module):
    def forward(self: Any, hidden_states):  # type: ignore[no-untyped-def]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class _GptOssNorm(nn.Module):
    def forward(self: Any, hidden_states):  # type: ignore[no-untyped-def]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight * hidden_states).to(input_dtype)


class _T5Norm(nn.Module):
    def forward(self: Any, hidden_states):  # type: ignore[no-untyped-def]
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)

        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)

        return self.weight * hidden_states


class _GemmaNorm(nn.Module):
    def forward(self: Any, x):  # type: ignore[no-untyped-def]
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


SPLITS: Mapping[type[nn.Module], type[WeightSplit]] = {
    nn.Linear: LinearSplit,
    nn.Embedding: EmbeddingSplit,
    nn.LayerNorm: LayerNormSplit,
    nn.RMSNorm: _RMSNormSplit,
    _Conv1D: Conv1DSplit,
    _LlamaNorm: _LlamaNormSplit,
    _GptOssNorm: _GptOssNormSplit,
    _T5Norm: _T5NormSplit,
    _GemmaNorm: _GemmaNormSplit,
}
"""What is registered from the start."""
