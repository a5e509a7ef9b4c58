"""The split backward of an embedding: rows looked up in the forward, put together in the second half.

It is the operation, on the same operands, that autograd runs for it, so gradients have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.models.split_backward.weight_split import Given, WeightSplit

__all__ = ["EmbeddingSplit"]

_BACKWARD = torch.ops.aten.embedding_dense_backward.default


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
        made: Tensor = _BACKWARD(gradient, kept[0], self._size, self._padding, self._by_frequency)
        return (made,)
