"""What every layer of a chain gives for inputs of a shape: found by one pass on the meta device, without weights.

Every rank makes the same pass for the whole chain, so shapes and plain values need not be sent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fullbore.errors import FullboreError, ModelError
from fullbore.models.auxiliary import collecting
from fullbore.models.layer import Layer, require_copyable
from fullbore.models.layered import Boundary, Microbatch, TensorSpec
from fullbore.models.microbatch import tensor_of
from fullbore.models.tree import Tree, take_apart
from fullbore.said import said

__all__ = ["ChainTrace", "Given", "replaced"]


@dataclass(frozen=True, slots=True)
class Given:
    """What one layer gives."""

    boundary: Boundary
    tree: Tree


class ChainTrace:
    """Traces of one chain, kept by the shape and type of its inputs."""

    def __init__(self, layers: Sequence[Layer], *, kind: str) -> None:
        self._layers = tuple(layers)
        self._kind = kind
        self._known: dict[tuple[tuple[int, ...], torch.dtype], tuple[Given, ...]] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> ChainTrace:
        return self

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def of(self, microbatch: Microbatch) -> tuple[Given, ...]:
        """What every layer but the last gives.

        Raises:
            ModelError: a layer cannot take what the one before it gives, or gives what cannot travel.
        """
        inputs = tensor_of(microbatch, key="inputs", reader="the first stage")
        at = (tuple(inputs.shape), inputs.dtype)
        if at not in self._known:
            self._known[at] = self._trace(*at)
        return self._known[at]

    def _trace(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Given, ...]:
        """The copy never holds values, not even for a moment."""
        require_copyable(self._layers, where=self._kind)
        memo = replaced(self._layers, lambda tensor: tensor.detach().to("meta"))
        modules = copy.deepcopy([module for layer in self._layers for _, module in layer.parts], memo)
        value: Any = torch.empty(shape, dtype=dtype, device="meta")
        found = []
        # A tensor that a layer makes without saying where is made here; auxiliary losses are collected and forgotten.
        with torch.enable_grad(), torch.random.fork_rng(devices=[]), torch.device("meta"), collecting():
            for layer, module in zip(self._layers, modules, strict=True):
                try:
                    value = module.to("meta")(value)
                except FullboreError:
                    raise
                except Exception as error:  # whatever a layer of the user's raises on what it cannot take
                    raise ModelError(
                        f"layer {layer.name!r} of {self._kind} cannot take what the layer before it gives "
                        f"({_describe(value)}): {said(error)}"
                    ) from error
                if layer is self._layers[-1]:
                    break  # what the last one gives is the objective's
                parcel, tree = take_apart(value, giver=f"layer {layer.name!r}")
                found.append(Given(Boundary(tuple(_spec(tensor) for tensor in parcel)), tree))
        return tuple(found)


def replaced(layers: Sequence[Layer], make: Callable[[Tensor], Tensor]) -> dict[int, object]:
    """A memo for `copy.deepcopy` that puts ``make(tensor)`` for each tensor; a shared weight stays shared."""
    memo: dict[int, object] = {}
    for layer in layers:
        memo |= {id(p): nn.Parameter(make(p), p.requires_grad) for _, p in layer.parameters()}
        memo |= {id(buffer): make(buffer) for _, buffer in layer.buffers()}
    return memo


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype, gradient=tensor.requires_grad)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    return repr(tree_map(lambda leaf: list(leaf.shape) if isinstance(leaf, Tensor) else leaf, value))
