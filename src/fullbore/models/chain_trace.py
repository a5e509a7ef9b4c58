"""What every layer of a chain gives for inputs of a shape: found by one pass on the meta device, without weights.

Every rank makes the same pass for the whole chain, so shapes and plain values need not be sent. Neither need what no
gradient comes back to: the pass sees which inputs of a layer its outputs are made from, from the last layer on.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fullbore.errors import FullboreError, ModelError
from fullbore.models.auxiliary import collecting
from fullbore.models.enter import enter
from fullbore.models.layer import Layer, require_copyable
from fullbore.models.layered import Boundary, Microbatch, Parcel, TensorSpec
from fullbore.models.microbatch import tensor_of
from fullbore.models.reach import edges_of, reached
from fullbore.models.statistics import average_without_count
from fullbore.models.tree import Tree, take_apart
from fullbore.said import said

__all__ = ["ChainTrace", "Given", "replaced"]


@dataclass(frozen=True, slots=True)
class Given:
    """What one layer gives."""

    boundary: Boundary
    tree: Tree


_Edges = tuple[tuple[Any, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _Passed:
    """What one layer was given and gave, in the graph of its own forward."""

    given: _Edges
    gave: _Edges
    """Empty for the last layer."""

    objective: _Edges
    """Auxiliary losses, and all that the last layer gives."""


class ChainTrace:
    """Traces of one chain, kept by the shape and type of its inputs."""

    def __init__(self, layers: Sequence[Layer], *, kind: str) -> None:
        self._layers = tuple(layers)
        self._kind = kind
        self._known: dict[tuple[tuple[int, ...], torch.dtype], tuple[Given, ...]] = {}
        self._trains: dict[int, bool] = {}
        self.settle()

    def __deepcopy__(self, memo: dict[int, object]) -> ChainTrace:
        return self

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def settle(self) -> None:
        """Which weights train is as it is now, until the next call. One that is frozen or unfrozen later, on a rank
        that does not hold it, would have that rank expect what no other does."""
        self._trains = {id(p): p.requires_grad for layer in self._layers for _, p in layer.parameters()}
        self._known.clear()

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

    @torch.inference_mode(mode=False)  # in which a caller may evaluate; what is found here is for training too
    def _trace(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Given, ...]:
        """The copy never holds values, not even for a moment."""
        require_copyable(self._layers, where=self._kind)
        memo = replaced(self._layers, lambda tensor: tensor.detach().to("meta"), trains=self._trains)
        modules = copy.deepcopy([module for layer in self._layers for _, module in layer.parts], memo)
        for module in modules:
            average_without_count(module)
        value: Any = torch.empty(shape, dtype=dtype, device="meta")
        found: list[tuple[Parcel, Tree]] = []
        passed: list[_Passed] = []
        leaves: tuple[Tensor, ...] = ()
        # A tensor that a layer makes without saying where is made here; auxiliary losses are collected and forgotten.
        with torch.enable_grad(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            for layer, module in zip(self._layers, modules, strict=True):
                try:
                    with collecting() as added:
                        value = module.to("meta")(value)
                except FullboreError:
                    raise
                except Exception as error:  # whatever a layer of the user's raises on what it cannot take
                    raise ModelError(
                        f"layer {layer.name!r} of {self._kind} cannot take what the layer before it gives "
                        f"({_describe(value)}): {said(error)}"
                    ) from error
                given = edges_of(leaves)
                if layer is self._layers[-1]:  # what it gives is the objective's
                    outputs = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
                    passed.append(_Passed(given, (), edges_of((*added, *outputs))))
                    break
                parcel, tree = take_apart(value, giver=f"layer {layer.name!r}")
                found.append((parcel, tree))
                passed.append(_Passed(given, edges_of(parcel), edges_of(added)))
                leaves = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in parcel)
                value = tree.rebuild(tuple(enter(leaf) if leaf.requires_grad else leaf for leaf in leaves))
        return tuple(
            Given(Boundary(tuple(map(_spec, parcel, wanted))), tree)
            for (parcel, tree), wanted in zip(found, _wanted(passed), strict=True)
        )


def _wanted(passed: Sequence[_Passed]) -> list[tuple[bool, ...]]:
    """For each layer but the last, to which of the tensors that it gives a gradient comes back."""
    wanted: list[tuple[bool, ...]] = [()]
    for layer in reversed(passed[1:]):
        ends = reached((*layer.objective, *itertools.compress(layer.gave, wanted[-1])))
        wanted.append(tuple(edge in ends for edge in layer.given))
    return wanted[:0:-1]


def replaced(
    layers: Sequence[Layer], make: Callable[[Tensor], Tensor], *, trains: Mapping[int, bool] = MappingProxyType({})
) -> dict[int, object]:
    """A memo for `copy.deepcopy` that puts ``make(tensor)`` for each tensor; a shared weight stays shared.

    ``trains``: by identity, which weights are taken for trained ones; any other is what it is.
    """
    memo: dict[int, object] = {}
    for layer in layers:
        memo |= {id(p): nn.Parameter(make(p), trains.get(id(p), p.requires_grad)) for _, p in layer.parameters()}
        memo |= {id(buffer): make(buffer) for _, buffer in layer.buffers()}
    return memo


def _spec(tensor: Tensor, wanted: bool) -> TensorSpec:
    trained = tensor.requires_grad
    return TensorSpec(tuple(tensor.shape), tensor.dtype, gradient=trained and wanted, cut_off=trained and not wanted)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    return repr(tree_map(lambda leaf: list(leaf.shape) if isinstance(leaf, Tensor) else leaf, value))
