"""Writing a whole file that a person named: what was there stays until all of the new one is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, pieces: Iterable[str]) -> None:
    """Make a file, or put another in its place, in UTF-8. Line ends stay as they are given.

    A symbolic link keeps pointing to the file, which keeps its permissions. Another name of it (a hard link) keeps
    the old content. What is no file, such as a device or a pipe, is written into and not replaced.

    Raises:
        OSError: it cannot be written, or is a folder.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with path.open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
        return
    target = path.resolve()
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    file = partial.open("x", encoding="utf-8", newline="")
    try:
        with file:
            file.writelines(pieces)
        if mode is not None:
            partial.chmod(stat.S_IMODE(mode))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
