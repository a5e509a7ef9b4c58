"""TensorBytes: how many bytes of tensors are alive, now and at most.

Every operation that PyTorch dispatches on this thread, those of autograd's backward too, is looked at: the storages of
its results are counted from here until they are freed, wherever that happens. Why not the allocator's own record (the
profiler's): it does not hear of memory that another thread frees, and sends are let go of on threads. What an operation
allocates and frees inside itself is not seen; it is the same for every system that runs the same layers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["TensorBytes"]


class TensorBytes(TorchDispatchMode):
    """A context. ``watched_bytes``: storages of exactly this size are counted too. ``beside``: is never counted."""

    def __init__(self, *, watched_bytes: int, beside: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._watched_bytes = watched_bytes
        self._lock = threading.RLock()  # a storage can be freed while one is being counted
        self._alive = {tensor.untyped_storage()._cdata for tensor in beside}
        self.now = self.most = 0
        self.watched_now = self.watched_most = 0

    def restart(self) -> None:
        """Forget the peaks."""
        with self._lock:
            self.most, self.watched_most = self.now, self.watched_now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":  # which has a size and no memory
                self._count(tensor)
        return made

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        with self._lock:
            if not size or key in self._alive:
                return
            self._alive.add(key)
            self._change(size, 1)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        with self._lock:
            self._alive.discard(key)
            self._change(-size, -1)

    def _change(self, size: int, number: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)
        if abs(size) == self._watched_bytes:
            self.watched_now += number
            self.watched_most = max(self.watched_most, self.watched_now)
