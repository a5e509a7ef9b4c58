"""The C library's memory, made to behave like a device's."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Have the C library (glibc) hold on to what is freed, as PyTorch does on a GPU.

    Otherwise a large tensor is mapped anew each time, and what is kept longer (as everything that `W` needs is) is paid
    in page faults of the next microbatch.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, 2**30)
        library.mallopt(_MMAP_THRESHOLD, 2**30)
