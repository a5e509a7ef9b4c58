"""LayerCost: what one layer takes. Measured by `fullbore profile`, or written by hand in a COSTS.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fullbore.errors import CostsError
from fullbore.json_file import read_json, write_json
from fullbore.nearest import nearest
from fullbore.shown import shown

__all__ = ["LayerCost", "costs_document", "read_costs", "read_microbatch_size", "write_costs"]


_MOST = {"_ns": 2**53, "_bytes": 2**50}
"""A hundred days, a petabyte: anything above is a slip of the pen, and no sum over layers overflows 64 bits."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one microbatch. Times in integer nanoseconds, sizes in bytes; missing sizes are 0."""

    name: str
    forward_ns: int
    backward_input_ns: int
    backward_weight_ns: int
    parameters: int = 0
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    """What the layer keeps from its forward until its backward."""

    output_bytes: int = 0
    """What would cross a boundary placed after this layer."""

    recompute_ns: int = 0
    """Its part of an R, where forward runs again as an action before the backward. A choice, so no file has it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                if not isinstance(value, str) or not value:
                    raise CostsError(f"the name of a layer is text and not empty (given {shown(repr(value))})")
                continue
            most = next((limit for end, limit in _MOST.items() if field.name.endswith(end)), 10**30)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise CostsError(
                    f"{field.name} must be an integer from 0 to {most} (layer {self.name!r}: {shown(repr(value))})"
                )

    @property
    def time_ns(self) -> int:
        """Forward, the whole backward and an R: what the layer adds to a stage's rhythm."""
        return self.forward_ns + self.backward_input_ns + self.backward_weight_ns + self.recompute_ns


_NAMES = tuple(field.name for field in fields(LayerCost) if field.name != "recompute_ns")
_REQUIRED = ("name", "forward_ns", "backward_input_ns", "backward_weight_ns")


def read_costs(path: Path) -> tuple[LayerCost, ...]:
    """The layers of a COSTS.json, in model order.

    Raises:
        CostsError: unreadable, not JSON, or a layer with a missing, unknown or negative entry.
    """
    document = read_json(path, what="costs file", error=CostsError)
    layers = document.get("layers") if isinstance(document, dict) else None
    if not isinstance(layers, list) or not layers:
        raise CostsError(f'a costs file holds {{"layers": [...]}} with at least one layer ({path} does not)')
    return tuple(_layer(entry, where=f"{path}, layer {index}") for index, entry in enumerate(layers))


def read_microbatch_size(path: Path) -> int:
    """How many sequences the costs of a COSTS.json are for; 1 where it does not say.

    Raises:
        CostsError: unreadable, or not a whole number of at least 1.
    """
    document = read_json(path, what="costs file", error=CostsError)
    size = document.get("microbatch_size", 1) if isinstance(document, dict) else 1
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise CostsError(f"microbatch_size is a whole number of at least 1 ({path}: {size!r})")
    return size


def write_costs(path: Path, layers: Sequence[LayerCost], **more: Any) -> None:
    """Write a COSTS.json; ``more`` are further top-level keys (device, dtype, lengths).

    Raises:
        CostsError: the file cannot be written.
    """
    write_json(path, costs_document(layers, **more), what="costs file", error=CostsError)


def costs_document(layers: Sequence[LayerCost], **more: Any) -> dict[str, Any]:
    """The JSON document of a COSTS.json."""
    return {**more, "layers": [{name: getattr(layer, name) for name in _NAMES} for layer in layers]}


def _layer(entry: Any, *, where: str) -> LayerCost:
    if not isinstance(entry, dict):
        raise CostsError(f"a layer is a JSON object ({where}: {entry!r})")
    for key in entry:
        if key not in _NAMES:
            near = nearest(key, _NAMES)
            hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(_NAMES)}"
            raise CostsError(f"unknown key {key!r} ({where}){hint}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise CostsError(f"a layer needs {', '.join(_REQUIRED)} ({where} lacks {', '.join(missing)})")
    try:
        return LayerCost(**entry)
    except CostsError as error:
        raise CostsError(f"{error} in {where}") from error
