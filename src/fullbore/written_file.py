"""Writing a whole file that a person named: what was there stays until all of the new one is."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, pieces: Iterable[str]) -> None:
    """Make a file, or put another in its place, in UTF-8. Line ends stay as they are given.

    A symbolic link keeps pointing to the file, which keeps its owner and permissions. Another name of it (a hard link)
    keeps the old content. What is no file, such as a device or a pipe, is written into and not replaced. So is a file
    that may be written while none like it may be made in its folder.

    Raises:
        OSError: it cannot be written, or is a folder.
    """
    try:
        held = path.stat()
    except FileNotFoundError:
        held = None
    if held is not None and not stat.S_ISREG(held.st_mode):
        _write_into(path, pieces)
        return
    target = Path(os.path.realpath(path))
    try:
        partial = _made_beside(target, like=held)
    except PermissionError:
        _write_into(path, pieces)
        return
    try:
        _write_into(partial, pieces)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _made_beside(target: Path, *, like: os.stat_result | None) -> Path:
    """An empty file in the same folder, with this owner and these permissions; those of any new file for None.

    So who may not write the old file may not write this one: a rename alone would ask only the folder.

    Raises:
        PermissionError: there can be none like it here.
    """
    made = target.with_name(f".fullbore-{secrets.token_hex(8)}.partial")
    made.touch(exist_ok=False)
    if like is not None:
        try:
            os.chown(made, like.st_uid, like.st_gid)
            made.chmod(stat.S_IMODE(like.st_mode))
        except OSError as error:  # of many kinds: a container has no number for an owner outside
            made.unlink()
            raise PermissionError(error.errno, error.strerror) from error
    return made


def _write_into(path: Path, pieces: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)
