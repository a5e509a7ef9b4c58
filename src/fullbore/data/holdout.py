"""Sets documents apart for evaluation.

Documents are chosen by a hash of their text: the choice depends neither on the run's seed nor on the order of the
files, and copies of one text always fall on the same side, so nothing evaluated was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from fullbore.data.document import Document

__all__ = ["Split", "split_documents"]


@dataclass(frozen=True, slots=True)
class Split:
    """Both in the order of the source."""

    train: tuple[Document, ...]
    heldout: tuple[Document, ...]


def split_documents(documents: Sequence[Document], *, fraction: float) -> Split:
    """Holds out texts of together at most ``fraction`` of the bytes; at least the shortest text, where there are two.

    A fraction of 0, or a single text, holds out nothing.
    """
    digests = [hashlib.sha256(document.text).digest() for document in documents]
    sizes: dict[bytes, int] = {}
    for digest, document in zip(digests, documents, strict=True):
        sizes[digest] = sizes.get(digest, 0) + len(document.text)
    if fraction == 0 or len(sizes) < 2:
        return Split(tuple(documents), ())
    room = fraction * sum(sizes.values())
    chosen = set()
    for digest in sorted(sizes):
        if sizes[digest] <= room:
            chosen.add(digest)
            room -= sizes[digest]
    if not chosen:
        chosen.add(min(sizes, key=lambda digest: (sizes[digest], digest)))
    pairs = list(zip(digests, documents, strict=True))
    return Split(
        tuple(document for digest, document in pairs if digest not in chosen),
        tuple(document for digest, document in pairs if digest in chosen),
    )
