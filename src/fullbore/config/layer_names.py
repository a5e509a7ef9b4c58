"""Names of layers: those of a setting held against those that a model has, and several told in few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fullbore.errors import ConfigError
from fullbore.nearest import nearest

__all__ = ["name_ranges", "require_layers"]


def require_layers(names: Iterable[str], *, layer_names: Sequence[str], setting: str) -> None:
    """Raises ConfigError for the first of ``names`` that is no layer; ``setting`` is where they were given."""
    for name in names:
        if name not in layer_names:
            near = nearest(name, layer_names)
            hint = f"did you mean {near!r}?" if near else f"the layers are {', '.join(layer_names)}"
            raise ConfigError(f"{setting} names layers of the model ({name!r} is none of them); {hint}")


def name_ranges(indices: Sequence[int], *, layer_names: Sequence[str]) -> str:
    """Layers by their ascending indices, neighbors as a range: ``layers.0 to layers.2, head``."""
    starts = [index for index in indices if index - 1 not in indices]
    ends = [index for index in indices if index + 1 not in indices]
    return ", ".join(
        layer_names[start] if start == end else f"{layer_names[start]} to {layer_names[end]}"
        for start, end in zip(starts, ends, strict=True)
    )
