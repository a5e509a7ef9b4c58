"""Layer: a named run of modules, with full names for the weights and buffers inside.

Most layers are one module. The head of a language model is two (norm and projection), and its embedding may
be followed by dropout. Every tensor of a layer has a *key*, ``module name + "." + local name``, unique in the
model even for a weight that two layers share; a cut copies modules but keeps keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fullbore.errors import ModelError

__all__ = ["Layer", "on_meta", "require_copyable"]


@dataclass(frozen=True, slots=True)
class Layer:
    """``parts`` are (full module name, module), in the order they are called."""

    name: str
    parts: tuple[tuple[str, nn.Module], ...]

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(key, parameter); a parameter held under two names comes twice."""
        for prefix, module in self.parts:
            for local, parameter in module.named_parameters(remove_duplicate=False):
                yield f"{prefix}.{local}", parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """(key, buffer)."""
        for prefix, module in self.parts:
            for local, buffer in module.named_buffers(remove_duplicate=False):
                yield f"{prefix}.{local}", buffer


def on_meta(layers: tuple[Layer, ...], *, where: str) -> bool:
    """Whether the tensors are on the meta device (to be materialised) or hold values (to be kept).

    Raises:
        ModelError: some are and some are not, or a lazy parameter has no shape yet.
    """
    kinds: dict[bool, str] = {}
    for layer in layers:
        for key, tensor in (*layer.parameters(), *layer.buffers()):
            if is_lazy(tensor):
                raise ModelError(f"every parameter needs a shape, but {key} of {where} is lazy; run one forward first")
            kinds.setdefault(tensor.device == torch.device("meta"), key)
    if len(kinds) == 2:
        raise ModelError(
            f"a model is either wholly on the meta device or wholly real ({where}: {kinds[True]} is on meta, "
            f"{kinds[False]} is not); build it under one `with torch.device(...)`"
        )
    return True in kinds


def require_copyable(layers: tuple[Layer, ...], *, where: str) -> None:
    """Before `copy.deepcopy`, which takes no tensor that was computed from weights.

    Raises:
        ModelError: a module holds one, as torch's weight norm and pruning of old leave one in place of the weight.
    """
    for layer in layers:
        for prefix, part in layer.parts:
            for local, module in part.named_modules():
                computed = [name for name, held in vars(module).items() if isinstance(held, Tensor) and held.grad_fn]
                if computed:
                    raise ModelError(
                        f"a model is copied without values to find what its layers hand on, and "
                        f"{'.'.join(filter(None, (prefix, local)))} of {where} holds {computed[0]!r} computed from "
                        "weights, which cannot be copied; in place of torch.nn.utils.weight_norm use "
                        "torch.nn.utils.parametrizations.weight_norm, and end pruning with torch.nn.utils.prune.remove"
                    )
