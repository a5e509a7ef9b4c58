"""Names of layers, as a setting lists them, held against those that a model has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fullbore.errors import ConfigError
from fullbore.nearest import nearest

__all__ = ["require_layers"]


def require_layers(names: Iterable[str], *, layer_names: Sequence[str], setting: str) -> None:
    """Raises ConfigError for the first of ``names`` that is no layer; ``setting`` is where they were given."""
    for name in names:
        if name not in layer_names:
            near = nearest(name, layer_names)
            hint = f"did you mean {near!r}?" if near else f"the layers are {', '.join(layer_names)}"
            raise ConfigError(f"{setting} names layers of the model ({name!r} is none of them); {hint}")
