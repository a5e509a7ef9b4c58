"""From the meta device to values: each layer's own initialisation, drawn from (seed, layer name).

A layer is always drawn by itself, on the CPU, in float32, with the generator seeded by a hash of the seed and
the layer's name, and then cast to the dtype and moved to the device it is wanted on. So its values are the same
bits whatever stage it lands in and however many there are; bfloat16 gets the float32 draw rounded, float64 the
float32 draw widened. (Seeding every stage alike makes stages start identical: pytorch/pytorch #139304.)

Every tensor is filled with NaN before the model's own initialiser runs, so one that it does not set is found
and named instead of training from whatever memory held.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.layer import Layer
from fullbore.models.tied import WeightNames

__all__ = ["Initializer", "draw_layer", "fill", "layer_seed", "reset_parameters"]

Initializer = Callable[[nn.Module], None]
"""Sets the tensors that a module holds directly; called for each module, children before their parent."""


def layer_seed(seed: int, *, layer: str) -> int:
    """The seed of one layer: 63 bits of SHA-256 over both."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{layer}".encode()).digest()[:8], "big") >> 1


def reset_parameters(module: nn.Module) -> None:
    """PyTorch's own convention for plain modules."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, name, None)
        if callable(reset):
            reset()
            return


def draw_layer(
    layer: Layer,
    *,
    keys: Collection[str],
    seed: int,
    initialize: Initializer | None = None,
    initialize_layer: Callable[[Layer], None] | None = None,
) -> dict[str, Tensor]:
    """The values of one meta layer for ``keys``: parameters in float32, buffers in their own dtype, on the CPU.

    The caller's random state is left as it was. ``initialize_layer``: called with the whole layer that is to be set,
    after ``initialize`` has seen each module of it.

    Raises:
        ModelError: the initialiser does not set one of the tensors asked for.
    """
    modules = copy.deepcopy(tuple(module for _, module in layer.parts))
    own = Layer(layer.name, tuple((prefix, module) for (prefix, _), module in zip(layer.parts, modules, strict=True)))
    memo: dict[int, nn.Parameter] = {}
    for part in modules:
        for module in part.modules():
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if id(parameter) not in memo:
                    dtype = torch.float32 if parameter.is_floating_point() else parameter.dtype
                    memo[id(parameter)] = nn.Parameter(_unset(parameter, dtype=dtype), parameter.requires_grad)
                module._parameters[name] = memo[id(parameter)]
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                module._buffers[name] = _unset(buffer, dtype=buffer.dtype)
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.default_generator.manual_seed(layer_seed(seed, layer=layer.name))
        if initialize is not None:
            for part in modules:
                part.apply(initialize)
        if initialize_layer is not None:
            initialize_layer(own)
    drawn = {key: parameter.detach() for key, parameter in own.parameters()} | dict(own.buffers())
    values = {key: drawn[key] for key in keys}
    for key, value in values.items():
        if _is_unset(value):
            raise ModelError(
                f"every tensor needs an initialiser, but nothing sets {key} of layer {layer.name!r} "
                f"({_owner(own, key)}); give that module a reset_parameters() that sets it, or build the model "
                "on a real device"
            )
    return values


def fill(layers: Iterable[Layer], values: Mapping[str, Tensor], *, names: WeightNames, device: torch.device) -> None:
    """Replace the meta tensors of ``layers`` (a stage's own copy) by ``values``, which go by full name.

    Dtypes are those of the meta tensors. A weight that two layers share becomes one parameter.
    """
    made: dict[str, nn.Parameter] = {}
    for layer in layers:
        for prefix, part in layer.parts:
            for path, module in part.named_modules(remove_duplicate=False):
                base = f"{prefix}.{path}." if path else f"{prefix}."
                for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                    full = names.full[base + name]
                    if full not in made:
                        value = values[full].to(device=device, dtype=parameter.dtype)
                        made[full] = nn.Parameter(value, requires_grad=parameter.requires_grad)
                    module._parameters[name] = made[full]
                for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                    value = values[names.full[base + name]]
                    module._buffers[name] = value.to(device=device, dtype=buffer.dtype)


def _unset(tensor: Tensor, *, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(tensor.shape, float("nan"), dtype=dtype)
    if dtype == torch.bool:
        return torch.zeros(tensor.shape, dtype=dtype)
    return torch.full(tensor.shape, torch.iinfo(dtype).max, dtype=dtype)


def _is_unset(value: Tensor) -> bool:
    if value.is_floating_point() or value.is_complex():
        return bool(value.isnan().any())
    if value.dtype == torch.bool:
        return False
    return bool((value == torch.iinfo(value.dtype).max).any())


def _owner(layer: Layer, key: str) -> str:
    for prefix, module in layer.parts:
        path = key.removeprefix(f"{prefix}.").rpartition(".")[0]
        if key.startswith(f"{prefix}."):
            return type(module.get_submodule(path)).__name__
    return "unknown module"
