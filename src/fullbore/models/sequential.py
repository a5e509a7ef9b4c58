"""Adapter for `nn.Sequential`: its children are the layers."""

from __future__ import annotations

from torch import nn

from fullbore.models.chain import ChainModel
from fullbore.models.layered import Objective

__all__ = ["sequential_model"]


def sequential_model(module: nn.Sequential, *, objective: Objective | None = None) -> ChainModel:
    """Layers are the children, by their names ("0", "1", ... unless given)."""
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    return ChainModel(children, kind=type(module).__name__, root=module, objective=objective)
