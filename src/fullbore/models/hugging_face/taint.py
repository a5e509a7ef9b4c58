"""Which values a tensor was made from: labels that follow every operation.

Autograd answers that for floating-point tensors only. An index that a layer chose (the tokens that the next layers
may attend to) depends on weights as well and has no gradient; a stage that computed it from blanks would be silently
wrong. So labels follow operations, whatever their type. They go by storage: a view has the labels of its base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Taint"]

Label = TypeVar("Label")


class Taint(TorchDispatchMode, Generic[Label]):  # type: ignore[no-untyped-call]
    """Inside this mode, every tensor has the labels of all tensors it was computed from."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._labels: dict[int, frozenset[Label]] = {}
        self._alive: list[UntypedStorage] = []

    def of(self, tensors: Sequence[Tensor]) -> frozenset[Label]:
        """All labels of these."""
        return frozenset().union(*(self._labels.get(_storage(tensor), frozenset()) for tensor in tensors))

    def mark(self, tensor: Tensor, labels: frozenset[Label]) -> None:
        """These are its labels from now on."""
        self._alive.append(tensor.untyped_storage())  # an address stays its own while somebody holds it
        self._labels[_storage(tensor)] = labels

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        given = kwargs or {}
        output = func(*args, **given)
        labels = self.of(_tensors((args, given)))
        if labels:
            for tensor in (*_tensors(output), *_written(func, args)):
                self.mark(tensor, self.of([tensor]) | labels)
        return output


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _written(func: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    """What an operation in place has changed."""
    schema = func._schema  # type: ignore[attr-defined]
    if not schema.is_mutable:
        return []
    pairs = zip(schema.arguments, args, strict=False)
    return [tensor for declared, given in pairs if _is_write(declared) for tensor in _tensors(given)]


def _is_write(declared: Any) -> bool:
    return declared.alias_info is not None and bool(declared.alias_info.is_write)
