"""Rows: the numbers of one microbatch, and the ways to make them from documents of uneven length.

padded   one document a row, filled up to the longest; what is filled up does not count and is masked
packed   documents behind each other in a single row; their position ids start again at 0, and a model that derives
         its attention mask from position ids (transformers does, where no attention mask is given) sees each
         document alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fullbore.labels import IGNORED_LABEL

__all__ = ["Piece", "Rows", "packed", "padded"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or what fits of it: inputs and, one token further, labels; both ``[position]``."""

    input_ids: Ints
    labels: Ints
    sample_id: int

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Rows:
    """One microbatch; every array is ``[row, position]``."""

    input_ids: Ints
    labels: Ints
    """Already shifted: ``labels[r, i]`` is the token after ``input_ids[r, i]``."""

    position_ids: Ints | None = None
    """None where every row counts from 0 to its end."""

    attention_mask: Ints | None = None
    """1 for a token, 0 for what was filled up; None where every position is a token."""


def padded(pieces: Sequence[Piece]) -> Rows:
    """One row each, as long as the longest."""
    shape = (len(pieces), max(map(len, pieces)))
    input_ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED_LABEL, np.int64)
    for row, piece in enumerate(pieces):
        input_ids[row, : len(piece)] = piece.input_ids
        labels[row, : len(piece)] = piece.labels
        mask[row, : len(piece)] = 1
    return Rows(input_ids, labels, attention_mask=None if mask.all() else mask)


def packed(pieces: Sequence[Piece]) -> Rows:
    """One row of them all."""
    return Rows(
        np.concatenate([piece.input_ids for piece in pieces])[None],
        np.concatenate([piece.labels for piece in pieces])[None],
        position_ids=np.concatenate([np.arange(len(piece), dtype=np.int64) for piece in pieces])[None],
    )
