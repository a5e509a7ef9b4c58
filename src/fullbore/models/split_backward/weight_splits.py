"""The classes whose backward is split from the start: linear maps, embeddings, norms, each with how it is split."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fullbore.models.split_backward.copied_forwards import Conv1D, GemmaNorm, GptOssNorm, LlamaNorm, T5Norm
from fullbore.models.split_backward.embedding_split import EmbeddingSplit
from fullbore.models.split_backward.linear_splits import Conv1DSplit, LinearSplit
from fullbore.models.split_backward.norm_splits import (
    GemmaNormSplit,
    GptOssNormSplit,
    LayerNormSplit,
    LlamaNormSplit,
    RMSNormSplit,
    T5NormSplit,
)
from fullbore.models.split_backward.weight_split import WeightSplit

__all__ = ["SPLITS"]

SPLITS: Mapping[type[nn.Module], type[WeightSplit]] = {
    nn.Linear: LinearSplit,
    nn.Embedding: EmbeddingSplit,
    nn.LayerNorm: LayerNormSplit,
    nn.RMSNorm: RMSNormSplit,
    Conv1D: Conv1DSplit,
    LlamaNorm: LlamaNormSplit,
    GptOssNorm: GptOssNormSplit,
    T5Norm: T5NormSplit,
    GemmaNorm: GemmaNormSplit,
}
