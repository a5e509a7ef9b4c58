"""The operations a forward runs: two layers that run the same ones on the same shapes are the same block.

Parameters and bytes do not tell that (an attention over a window has those of a full one), and the time of a layer does
only where nothing else uses the machine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Operations"]

_PLAIN = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what runs inside this mode.

    ``ran``: names, and shapes, types and plain values of what they take. Without views and without what is made of
    nothing: a block that runs by itself has stand-ins for those before it, the more the further down it is.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        given = kwargs or {}
        leaves = tree_leaves((args, given))
        is_view = isinstance(func, torch._ops.OpOverload) and func.is_view
        if not is_view and any(isinstance(leaf, Tensor) for leaf in leaves):
            self.ran.append((str(func), *map(_described, leaves)))
        return func(*args, **given)


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype)
    return value if isinstance(value, _PLAIN) else type(value)
