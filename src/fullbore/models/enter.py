"""Entering a stage: the identity, through which a layer may overwrite what it is given.

What a stage receives is a leaf of its graph, which autograd lets nobody overwrite. In the unsplit model the same
tensor is the output of the layer before, and a ReLU in place is fine. So a leaf enters through this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["enter"]


def enter(leaf: Tensor) -> Tensor:
    """``leaf`` as the output of an operation, on the same storage; its gradient arrives at the leaf."""
    entered: Tensor = _Enter.apply(leaf)  # type: ignore[no-untyped-call]
    return entered


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0]
