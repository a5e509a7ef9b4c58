"""Reading a whole file that a person named, which need not be one: a device such as /dev/zero has no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["MOST_BYTES", "read_bounded"]

MOST_BYTES = 256 << 20


def read_bounded(path: Path) -> bytes:
    """The content of a file or a pipe.

    Raises:
        OSError: it cannot be read, is a device, or has more than `MOST_BYTES`; ``strerror`` says so.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise OSError(errno.EINVAL, "it is a device and not a file", str(path))
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB", str(path))
    return content
