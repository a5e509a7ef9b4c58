"""Tensors inside the containers that modules hand each other, by path.

Beside tuples and dicts a model may pass a container that its layers fill as they run (key and value states that later
layers reuse, router logits for the loss). So anything that behaves as a mapping or a sequence is walked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from torch import Tensor

__all__ = ["Path", "at", "fillable", "items", "leaves", "put", "walk"]

Path = tuple[Any, ...]
"""Keys and indices, from the outside in."""


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor with its path."""
    return ((found, leaf) for found, leaf in leaves(value, path) if isinstance(leaf, Tensor))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Everything that is no container, with its path."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from leaves(entry, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for index, entry in enumerate(value):
            yield from leaves(entry, (*path, index))
    else:
        yield path, value


def fillable(value: Any, path: Path = ()) -> Iterator[tuple[Path, MutableMapping[Any, Any] | MutableSequence[Any]]]:
    """Every container that a module could put something into, with its path."""
    if isinstance(value, (MutableMapping, MutableSequence)):
        yield path, value
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from fillable(entry, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for index, entry in enumerate(value):
            yield from fillable(entry, (*path, index))


def items(container: Mapping[Any, Any] | Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Keys, or indices, and what is under them."""
    return iter(container.items()) if isinstance(container, Mapping) else enumerate(container)


def at(value: Any, path: Path) -> Any:
    """What lies there."""
    for key in path:
        value = value[key]
    return value


def put(container: MutableMapping[Any, Any] | MutableSequence[Any], key: Any, entry: Any) -> None:
    """Under a key, or at the end of a sequence."""
    if isinstance(container, MutableSequence) and key == len(container):
        container.append(entry)
    else:
        container[key] = entry
