"""Trees: what a layer gives, taken apart into the tensors that travel and the rest that does not.

A layer may give a tensor, or tuples, lists and dicts of tensors, integers, booleans, strings and None. Only tensors
cross a boundary. The receiving stage puts them back into the same tree, whose shape and plain leaves it has from a
pass on the meta device of its own: nothing about them is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fullbore.errors import ModelError
from fullbore.models.layered import Parcel
from fullbore.shown import shown

__all__ = ["Tree", "take_apart"]

_PLAIN = (int, float, bool, str, type(None))


class _Slot:
    """Where a tensor was."""

    def __repr__(self) -> str:
        return "tensor"


_SLOT = _Slot()


@dataclass(frozen=True, slots=True)
class Tree:
    """The structure around a `Parcel`."""

    spec: TreeSpec
    leaves: tuple[object, ...]
    """Plain leaves as they are; a mark where a tensor was."""

    def rebuild(self, parcel: Parcel) -> Any:
        """The tree with these tensors in their places."""
        tensors = iter(parcel)
        return tree_unflatten([next(tensors) if leaf is _SLOT else leaf for leaf in self.leaves], self.spec)

    def __str__(self) -> str:
        return str(tree_unflatten(list(self.leaves), self.spec))


def take_apart(value: Any, *, giver: str) -> tuple[Parcel, Tree]:
    """The tensors of ``value`` in the order of its leaves, and the tree without them.

    Raises:
        ModelError: a leaf is neither a tensor nor plain, or there is no tensor at all; names ``giver``.
    """
    leaves, spec = tree_flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *_PLAIN)):
            raise ModelError(
                f"between layers go tensors, numbers, booleans, strings and None in tuples, lists and dicts, but "
                f"{giver} gives a {type(leaf).__name__}; turn it into these, or join this layer and the next"
            )
    parcel = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    if not parcel:
        raise ModelError(f"a layer gives at least one tensor, but {giver} gives {shown(repr(value))}")
    return parcel, Tree(spec, tuple(_SLOT if isinstance(leaf, Tensor) else leaf for leaf in leaves))
