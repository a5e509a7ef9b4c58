"""Text that a path, a file and a terminal can take: Unicode, without a NUL."""

from __future__ import annotations

__all__ = ["is_plain"]


def is_plain(text: str) -> bool:
    """False for a NUL, and for the halves of surrogate pairs: what Python makes of bytes that are not UTF-8, and of
    such halves in JSON."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
