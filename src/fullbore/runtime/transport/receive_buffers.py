"""ReceiveBuffers: where arriving tensors go. On a CPU the large ones are used again within a step.

A fresh piece of memory of some megabytes comes from the kernel page by page, while the message is being copied into it:
that made a message of 4 MiB about half a millisecond later. (On a GPU PyTorch's own allocator keeps memory.)

A buffer is free again when nobody but this pool holds its storage: not the engine between forward and backward, not
autograd, not user code that kept what it was given. A new one is made only when none is free, so there are never more
than were needed at once; with the step they all go.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from fullbore.models.layered import TensorSpec

__all__ = ["ReceiveBuffers"]

_SMALLEST_BYTES = 1 << 17
"""Below it the C library's allocator keeps memory by itself."""


class ReceiveBuffers:
    """The receive buffers of one rank in one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[TensorSpec, list[Tensor]] = {}

    def take(self, spec: TensorSpec) -> Tensor:
        """A buffer with any content. What is returned is the only way to it but the pool's own."""
        if self._device.type != "cpu" or spec.num_bytes < _SMALLEST_BYTES:
            return torch.empty(spec.shape, dtype=spec.dtype, device=self._device)
        made = self._made.setdefault(spec, [])
        for place, buffer in enumerate(made):
            if _is_free(buffer):
                made.append(made.pop(place))  # the next one to come free is likely the one after it
                return buffer.detach()
        made.append(torch.empty(spec.shape, dtype=spec.dtype))
        return made[-1].detach()


def _is_free(buffer: Tensor) -> bool:
    """Whether nothing but ``buffer`` itself refers to its storage. Either count is as for a tensor just made."""
    storage = buffer.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) == _ALONE[0] and sys.getrefcount(storage) == _ALONE[1]


def _counts_alone() -> tuple[int, int]:
    """How often the storage of a tensor that nobody else knows is referred to, in C++ and in Python."""
    alone = torch.empty(1)
    storage = alone.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


_ALONE = _counts_alone()
