"""ChainModel: a model that is its layers called one after the other, each taking what the one before gave.

What a layer gives may be a tree: a skip connection, or an encoder's output that every decoder layer reads, goes along
as one more entry of a tuple until its last reader, and its gradient comes back the same way.

`nn.Sequential` and modules with `pipeline_layers()` are both this; their adapters only say what the layers are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.chain_trace import ChainTrace, replaced
from fullbore.models.layer import Layer, on_meta, require_copyable
from fullbore.models.layered import (
    Boundary,
    BuiltStage,
    Microbatch,
    Objective,
    Parcel,
    TiedWeight,
    WholeModel,
)
from fullbore.models.materialize import draw_layer, fill, reset_parameters
from fullbore.models.microbatch import tensor_of
from fullbore.models.tied import name_weights
from fullbore.models.tree import take_apart

__all__ = ["ChainModel", "ChainStage"]


class ChainStage(nn.Module):
    """A run of layers. The first stage of the model reads the microbatch's ``inputs``, and a copy of them where a layer
    could overwrite numbers that the caller, and the other microbatches, share."""

    def __init__(self, modules: Sequence[nn.Module], *, names: Sequence[str], trace: ChainTrace, first: int) -> None:
        """``first``: the number of its first layer in the model."""
        super().__init__()
        self.layers = nn.ModuleList(modules)
        self.names = tuple(names)
        self._trace = trace
        self._first = first

    def forward(self, carried: Parcel | None, microbatch: Microbatch) -> Any:
        value = self._entered(carried, microbatch)
        for layer in self.layers:
            value = layer(value)
        return self._handed_on(value, microbatch)

    def _entered(self, carried: Parcel | None, microbatch: Microbatch) -> Any:
        if self._first > 0:
            assert carried is not None, f"a stage that starts at {self.names[0]!r} needs what the one before it gave"
            return self._trace.of(microbatch)[self._first - 1].tree.rebuild(carried)
        value = tensor_of(microbatch, key="inputs", reader="the first stage")
        return value.clone() if value.is_floating_point() else value

    def _handed_on(self, value: Any, microbatch: Microbatch) -> Any:
        """What the last layer of the model gives as it is; from any other stage the tensors alone."""
        end = self._first + len(self.names)
        if end == self._trace.num_layers:
            return value
        parcel, tree = take_apart(value, giver=f"layer {self.names[-1]!r}")
        expected = self._trace.of(microbatch)[end - 1].tree
        if tree != expected:
            raise ModelError(
                f"what a layer gives beside tensors follows from its input's shape, but {self.names[-1]!r} gave {tree} "
                f"where {expected} was expected; give numbers that depend on values as tensors"
            )
        return parcel


class ChainModel:
    """A `LayeredModel` over (name, module) pairs. Microbatch keys: ``inputs``, and ``targets`` for the objective.

    Modules on a real device keep their weights, and stages take the modules themselves; modules on the meta
    device are materialised per stage from (seed, layer name).
    """

    def __init__(
        self, layers: Sequence[tuple[str, nn.Module]], *, kind: str, root: nn.Module, objective: Objective | None = None
    ) -> None:
        """``root`` gives tensors their full names; ``kind`` is for people.

        Raises:
            ModelError: no layer, a repeated name, or a weight of ``root`` that no layer holds.
        """
        if not layers:
            raise ModelError(f"a pipeline needs at least one layer ({kind} has none)")
        self._kind = kind
        self._root = root
        self._layers = tuple(Layer(name, ((name, module),)) for name, module in layers)
        self._objective = objective
        names = self.layer_names
        for name in names:
            if names.count(name) > 1:
                raise ModelError(f"layer names are unique ({kind} has {name!r} {names.count(name)} times)")
        known = {id(tensor): name for name, tensor in (*root.named_parameters(), *root.named_buffers())}
        self._names = name_weights(self._layers, known=known)
        held = {id(tensor) for layer in self._layers for _, tensor in (*layer.parameters(), *layer.buffers())}
        for tensor, name in known.items():
            if tensor not in held:
                raise ModelError(f"the layers together are the whole model, but none of them holds {name} of {kind}")
        self._meta = on_meta(self._layers, where=kind)
        self._trace = ChainTrace(self._layers, kind=kind)

    @property
    def description(self) -> str:
        return f"{self._kind}: {len(self._layers)} layers, {self.num_parameters:,} parameters"

    @property
    def num_parameters(self) -> int:
        """Each shared weight once."""
        return sum({id(p): p.numel() for layer in self._layers for _, p in layer.parameters()}.values())

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self._layers)

    @property
    def vocab_size(self) -> None:
        return None

    @property
    def tied(self) -> tuple[TiedWeight, ...]:
        return self._names.tied

    @property
    def objective(self) -> Objective | None:
        return self._objective

    def build_stage(self, first_layer: int, end_layer: int, *, seed: int, device: torch.device) -> BuiltStage:
        assert 0 <= first_layer < end_layer <= len(self._layers), (first_layer, end_layer)
        self._trace.settle()
        own = self._layers[first_layer:end_layer]
        if self._meta:
            modules = copy.deepcopy(tuple(module for layer in own for _, module in layer.parts))
            own = tuple(Layer(layer.name, ((layer.name, module),)) for layer, module in zip(own, modules, strict=True))
            fill(own, self._draw(own, first_layer=first_layer, seed=seed), names=self._names, device=device)
        for layer in own:
            layer.parts[0][1].to(device)
        modules = tuple(layer.parts[0][1] for layer in own)
        names = tuple(layer.name for layer in own)
        return BuiltStage(
            module=ChainStage(modules, names=names, trace=self._trace, first=first_layer),
            weights={self._names.full[key]: parameter for layer in own for key, parameter in layer.parameters()},
            buffers={self._names.full[key]: buffer for layer in own for key, buffer in layer.buffers()},
            layers=names,
            layer_modules=dict(zip(names, modules, strict=True)),
            parts=self._parts(modules, first_layer=first_layer),
        )

    def whole(self) -> WholeModel:
        """The user's module and its own forward; the layers in order where it has none."""
        require_copyable(self._layers, where=self._kind)
        memo = replaced(self._layers, lambda tensor: torch.empty_like(tensor, device="cpu")) if self._meta else {}
        root, layers = copy.deepcopy(
            (self._root, [module for layer in self._layers for _, module in layer.parts]), memo
        )
        root = root.to("cpu")
        own_forward = type(root).forward is not nn.Module.forward

        def call(microbatch: Microbatch) -> Tensor:
            value = tensor_of(microbatch, key="inputs", reader="the model").clone()
            for module in (root,) if own_forward else layers:
                value = module(value)
            return value

        return WholeModel(root, call, self._parts(layers, first_layer=0))

    def boundary(self, layer: int, microbatch: Microbatch) -> Boundary:
        assert 0 < layer < len(self._layers), layer
        return self._trace.of(microbatch)[layer - 1].boundary

    def _parts(self, modules: Sequence[nn.Module], *, first_layer: int) -> dict[str, tuple[nn.Module, ...]]:
        """A module that is several layers goes by the first one's name, whichever of them are here."""
        first: dict[int, str] = {}
        for layer in self._layers:
            first.setdefault(id(layer.parts[0][1]), layer.name)
        names = [first[id(layer.parts[0][1])] for layer in self._layers[first_layer : first_layer + len(modules)]]
        return {name: (module,) for name, module in zip(names, modules, strict=True)}

    def _draw(self, own: Sequence[Layer], *, first_layer: int, seed: int) -> Mapping[str, Tensor]:
        """Values by full name for the stage's layers, a tied weight's from the layer that owns it."""
        indices = self._names.owners(own) | set(range(first_layer, first_layer + len(own)))
        values: dict[str, Tensor] = {}
        for index in sorted(indices):
            layer = self._layers[index]
            keys = self._names.owned(layer, index=index)
            drawn = draw_layer(layer, keys=keys, seed=seed, initialize=reset_parameters)
            values |= {self._names.full[key]: value for key, value in drawn.items()}
        return values
