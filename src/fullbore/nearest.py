"""The known word nearest to one that is not known: what every "did you mean" asks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The most alike of ``known``; None where none is alike enough to be what was meant."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else None
