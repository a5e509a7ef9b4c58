"""Text with real, uneven lengths that every installation has: the docstrings of the standard library, as documents."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fullbore.data.documents import DocumentOrder
from fullbore.data.packing import PackingCost
from fullbore.data.stdlib_corpus import stdlib_documents

__all__ = ["docstrings", "order_of"]

_HAVE_ONE = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings() -> list[bytes]:
    """Each once, in the order of the library; from a few bytes to many thousand."""
    found: dict[bytes, None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old syntax in the library itself
        for document in stdlib_documents():
            for text in _of_module(ast.parse(document.text)):
                found.setdefault(text.encode())
    return list(found)


def order_of(documents: list[bytes], *, sequence_length: int, grouping: str, seed: int = 0) -> DocumentOrder:
    """Bytes are tokens, and a 0 is the separator behind each document."""
    texts = [np.frombuffer(text + b"\0", np.uint8) for text in documents]
    ends: NDArray[np.int64] = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return DocumentOrder(
        np.concatenate(texts),
        np.concatenate([[0], ends]).astype(np.int64),
        sequence_length=sequence_length,
        seed=seed,
        vocab_size=256,
        grouping=grouping,  # type: ignore[arg-type]
        cost=PackingCost(),
    )


def _of_module(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, _HAVE_ONE) and (text := ast.get_docstring(node)):
            yield text
