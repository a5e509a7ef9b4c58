"""Reading a whole file that a person named, which need not be one: a device such as /dev/zero has no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["MOST_BYTES", "read_bounded"]

MOST_BYTES = 256 << 20
"""Of what people write, and then some."""

_PIECE = 16 << 20
"""Read at once: Python makes room for so much before it knows that there is so much."""


def read_bounded(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file or a pipe.

    Raises:
        OSError: it cannot be read or called so, is a device, or has more than ``most_bytes``; ``strerror`` says so.
    """
    too_large = OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))
    content = bytearray()
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a NUL", str(path))
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            raise OSError(errno.EINVAL, "it is a device and not a file", str(path))
        if status.st_size > most_bytes:
            raise too_large
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > most_bytes:
                raise too_large
    return bytes(content)
