"""The known word nearest to one that is not known: what every "did you mean" asks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The most alike of ``known``; None where none is alike enough to be what was meant.

    ``alike``: from 0 to 1, by `difflib.SequenceMatcher.ratio`.
    """
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=alike)
    return found[0] if found else None
