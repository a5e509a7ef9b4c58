"""A layer whose class nobody knows, the split backward that its owner writes for it, and odd variants of that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fullbore.models.split_backward.weight_split import WeightSplit


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ScaleSplit(WeightSplit):
    def run(self, x: Any, weights: Any, wanted: Any) -> Any:
        return x * weights[0], (x,)

    def weight_gradients(self, gradient: Any, kept: Any, wanted: Any) -> Any:
        return ((gradient * kept[0]).flatten(0, -2).sum(0),)


def splitting(**members: Any) -> type[WeightSplit]:
    return type("OddSplit", (ScaleSplit,), members)
