"""DocumentOrder: documents as samples, each with its own length, in the order of `SampleOrder`.

A document of n + 1 tokens, its separator included, gives n inputs and n labels; one longer than the sequence length is
cut into pieces of that length and a rest. Every token with a successor in its document is an input exactly once an
epoch. The state is the same single integer, the samples consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fullbore.data.batches import need_in_vocabulary
from fullbore.data.packing import Packing, PackingCost, in_order, pack
from fullbore.data.permutation import shuffled
from fullbore.data.rows import Piece, Rows, packed, padded
from fullbore.errors import DataError

__all__ = ["DocumentOrder"]


@dataclass(frozen=True, eq=False)
class DocumentOrder:
    """The pieces of the documents of ``tokens``, shuffled anew in every epoch, and how they become microbatches."""

    tokens: NDArray[Any]
    edges: NDArray[np.int64]
    """The first token of each document, and the number of tokens at the end."""

    _: KW_ONLY
    sequence_length: int
    seed: int
    vocab_size: int
    grouping: Literal["padded", "packed", "balanced"]
    cost: PackingCost
    """Of a microbatch, for ``balanced``."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise DataError(
                f"a document gives a sample from 2 tokens on, its separator included (none of {len(self.edges) - 1} "
                "documents has them); use other text"
            )

    @cached_property
    def _pieces(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first token, length) of every piece."""
        inputs = np.maximum(np.diff(self.edges) - 1, 0)
        counts = -(-inputs // self.sequence_length)
        document = np.repeat(np.arange(len(inputs)), counts)
        number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = number * self.sequence_length
        return self.edges[:-1][document] + offsets, np.minimum(inputs[document] - offsets, self.sequence_length)

    @property
    def num_samples(self) -> int:
        """Pieces of one epoch."""
        return len(self._pieces[0])

    def draw(self, consumed: int, *, count: int) -> tuple[Piece, ...]:
        """The ``count`` pieces after the first ``consumed``; they may cross into the next epochs."""
        starts, lengths = self._pieces
        return tuple(
            self._piece(int(index), int(starts[index]), int(lengths[index]))
            for index in shuffled(consumed, count=count, num_samples=self.num_samples, seed=self.seed)
        )

    def microbatches(self, consumed: int, *, count: int, num_microbatches: int) -> tuple[Rows, ...]:
        """The same pieces, grouped. None holds more tokens than if every document were as long as it may be."""
        pieces = self.draw(consumed, count=count)
        make = padded if self.grouping == "padded" else packed
        groups = self._grouped([len(piece) for piece in pieces], num_microbatches).groups
        return tuple(make([pieces[index] for index in group]) for group in groups)

    def _grouped(self, lengths: Sequence[int], num_microbatches: int) -> Packing:
        if self.grouping != "balanced":
            return in_order(lengths, num_microbatches=num_microbatches)
        room = -(-len(lengths) // num_microbatches) * self.sequence_length
        return pack(lengths, num_microbatches=num_microbatches, cost=self.cost, max_tokens=room)

    def _piece(self, index: int, start: int, length: int) -> Piece:
        tokens = self.tokens[start : start + length + 1].astype(np.int64)
        need_in_vocabulary(tokens, vocab_size=self.vocab_size, sample_id=index)
        return Piece(tokens[:-1].copy(), tokens[1:].copy(), index)
