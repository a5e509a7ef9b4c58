"""Adapter for a module that names its own layers with `pipeline_layers()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from fullbore.errors import ModelError
from fullbore.models.chain import ChainModel
from fullbore.models.layered import Objective

__all__ = ["HasPipelineLayers", "protocol_model"]


@runtime_checkable
class HasPipelineLayers(Protocol):
    """What a module of any kind offers to be split."""

    def pipeline_layers(self) -> Sequence[tuple[str, nn.Module]]:
        """(name, module) in order; calling them one after the other *is* the forward."""


def protocol_model(module: nn.Module, *, objective: Objective | None = None) -> ChainModel:
    """Layers as the module gives them; weights keep their names in the module.

    Raises:
        ModelError: no `pipeline_layers()`, or it does not give (name, module) pairs.
    """
    kind = type(module).__name__
    if not isinstance(module, HasPipelineLayers):
        raise ModelError(f"{kind} has no pipeline_layers(); add one that gives its (name, module) pairs in order")
    layers = list(module.pipeline_layers())
    for entry in layers:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ModelError(f"pipeline_layers() gives (name, module) pairs ({kind} gave {entry!r})")
        if not isinstance(entry[1], nn.Module):
            raise ModelError(f"a pipeline layer is an nn.Module ({kind} gave {entry[0]!r}: {type(entry[1]).__name__})")
    return ChainModel(layers, kind=kind, root=module, objective=objective)
