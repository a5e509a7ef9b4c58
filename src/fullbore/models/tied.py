"""Which weights several layers share, and the one full name of each.

A shared weight is one `nn.Parameter` object reached from two layers: PyTorch itself says so, and a Hugging
Face model ties its head to its embedding in exactly that way when its configuration asks for it. Each rank
that uses a tied weight holds a copy with the owner's values; the runtime sums their gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fullbore.errors import ModelError
from fullbore.models.layer import Layer
from fullbore.models.layered import TiedWeight

__all__ = ["WeightNames", "name_weights"]


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Keys of tensors (see `Layer`) to their full names in the whole model."""

    full: Mapping[str, str]
    """Key of any parameter or buffer -> full name. Two keys of one tied weight have the same full name."""

    owner: Mapping[str, int]
    """Full name of a parameter -> the first layer that uses it: its values come from there."""

    tied: tuple[TiedWeight, ...]

    def owned(self, layer: Layer, *, index: int | None) -> list[str]:
        """The keys whose values come from this layer: not those of a tied weight that an earlier layer owns.

        ``index`` is None for modules that are no layer of the model, and so own nothing but buffers.
        """
        parameters = [key for key, _ in layer.parameters() if self.owner[self.full[key]] == index]
        return parameters + [key for key, _ in layer.buffers()]

    def owners(self, layers: Iterable[Layer]) -> set[int]:
        """The layers from which the weights of these come."""
        return {self.owner[self.full[key]] for layer in layers for key, _ in layer.parameters()}


def name_weights(layers: Sequence[Layer], *, known: Mapping[int, str] | None = None) -> WeightNames:
    """Name every parameter and buffer of the layers; find the shared ones.

    Args:
        layers: the whole model, in order.
        known: ``id(tensor)`` -> full name, where the model has names of its own; the others take their key.

    Raises:
        ModelError: two layers share a buffer, which no rank could keep up to date for the other.
    """
    known = known or {}
    full: dict[str, str] = {}
    first: dict[int, str] = {}
    users: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        for key, parameter in layer.parameters():
            name = first.setdefault(id(parameter), known.get(id(parameter), key))
            full[key] = name
            using = users.setdefault(name, [])
            if index not in using:
                using.append(index)
    holder: dict[int, int] = {}
    for index, layer in enumerate(layers):
        for key, buffer in layer.buffers():
            if holder.setdefault(id(buffer), index) != index:
                raise ModelError(
                    f"a buffer belongs to one layer, but {key} is shared by the layers "
                    f"{layers[holder[id(buffer)]].name!r} and {layer.name!r}; give each its own"
                )
            full[key] = known.get(id(buffer), key)
    tied = tuple(TiedWeight(name, tuple(using)) for name, using in users.items() if len(using) > 1)
    return WeightNames(full, {name: using[0] for name, using in users.items()}, tied)
