"""Document: a text with a name, the unit that is kept whole when evaluation data is set apart.

Every source yields documents, every tokenizer takes them. Their fingerprint says whether two runs, or two
machines of one run, read the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from fullbore.errors import DataError

__all__ = ["Document", "fingerprint", "need_text"]


@dataclass(frozen=True, slots=True)
class Document:
    """``text`` is UTF-8 without NUL bytes: the byte tokenizer's separator never occurs inside a document."""

    name: str
    text: bytes


def need_text(content: bytes, *, name: str) -> bytes:
    """``content`` itself, where it is text; binary files are refused by name and never trained on."""
    if b"\0" in content:
        at = content.index(b"\0")
        raise DataError(f"{name} is not text: it has a NUL byte at offset {at}; move it out of the data or convert it")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8 text: byte {content[error.start]:#04x} at offset {error.start}; "
            "move it out of the data or convert it"
        ) from None
    return content


def fingerprint(documents: Iterable[Document]) -> str:
    """sha256 over names, lengths and contents, in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.name}\0{len(document.text)}\0".encode())
        digest.update(document.text)
    return digest.hexdigest()
