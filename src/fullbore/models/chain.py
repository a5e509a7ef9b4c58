"""ChainModel: a model that is its layers called one after the other, each taking what the one before gave.

`nn.Sequential` and modules with `pipeline_layers()` are both this; their adapters only say what the layers are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.layer import Layer, on_meta
from fullbore.models.layered import Boundary, BuiltStage, Microbatch, Objective, TiedWeight, WholeModel
from fullbore.models.materialize import draw_layer, fill, reset_parameters
from fullbore.models.microbatch import tensor_of
from fullbore.models.tied import name_weights

__all__ = ["ChainModel", "ChainStage"]


class ChainStage(nn.Module):
    """A run of layers. The first stage of the model reads the microbatch's ``inputs``, and a copy of them where a layer
    could overwrite numbers that the caller, and the other microbatches, share."""

    def __init__(self, modules: Sequence[nn.Module], *, names: Sequence[str], first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(modules)
        self.names = tuple(names)
        self.first = first

    def forward(self, carried: Tensor | None, microbatch: Microbatch) -> Tensor:
        value = tensor_of(microbatch, key="inputs", reader="the first stage") if self.first else carried
        assert value is not None, f"a stage that starts at {self.names[0]!r} needs what the one before it gave"
        if self.first and value.is_floating_point():
            value = value.clone()
        for name, layer in zip(self.names, self.layers, strict=True):
            value = _one_tensor(layer(value), layer=name)
        return value


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
        self._boundaries: dict[tuple[tuple[int, ...], torch.dtype], tuple[Boundary, ...]] = {}

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
            module=ChainStage(modules, names=names, first=first_layer == 0),
            weights={self._names.full[key]: parameter for layer in own for key, parameter in layer.parameters()},
            buffers={self._names.full[key]: buffer for layer in own for key, buffer in layer.buffers()},
            layers=names,
            layer_modules=dict(zip(names, modules, strict=True)),
        )

    def whole(self) -> WholeModel:
        """The user's module and its own forward; the layers in order where it has none."""
        memo = self._replaced(lambda tensor: torch.empty_like(tensor, device="cpu")) if self._meta else {}
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

        return WholeModel(root, call)

    def boundary(self, layer: int, microbatch: Microbatch) -> Boundary:
        assert 0 < layer < len(self._layers), layer
        inputs = tensor_of(microbatch, key="inputs", reader="the first stage")
        at = (tuple(inputs.shape), inputs.dtype)
        if at not in self._boundaries:
            self._boundaries[at] = self._trace(*at)
        return self._boundaries[at][layer - 1]

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

    def _replaced(self, make: Callable[[Tensor], Tensor]) -> dict[int, object]:
        """A memo for `copy.deepcopy` that puts ``make(tensor)`` for each tensor; a shared weight stays shared."""
        memo: dict[int, object] = {}
        for layer in self._layers:
            memo |= {id(p): nn.Parameter(make(p), p.requires_grad) for _, p in layer.parameters()}
            memo |= {id(buffer): make(buffer) for _, buffer in layer.buffers()}
        return memo

    def _trace(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Boundary, ...]:
        """One pass of a meta copy: what each layer gives. The copy never holds values, not even for a moment."""
        memo = self._replaced(lambda tensor: tensor.detach().to("meta"))
        modules = copy.deepcopy([module for layer in self._layers for _, module in layer.parts], memo)
        value = torch.empty(shape, dtype=dtype, device="meta")
        found = []
        with torch.no_grad():
            for name, module in zip(self.layer_names, modules, strict=True):
                try:
                    value = _one_tensor(module.to("meta")(value), layer=name)
                except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
                    raise ModelError(
                        f"layer {name!r} of {self._kind} cannot take what the layer before it gives "
                        f"({list(value.shape)} {value.dtype}): {error}"
                    ) from error
                found.append(Boundary(tuple(value.shape), value.dtype))
        return tuple(found)


def _one_tensor(value: Any, *, layer: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ModelError(
            f"a layer gives one tensor, but {layer!r} gives {type(value).__name__}; "
            "pack it into one tensor, or join this layer and the next"
        )
    return value
