"""SampleOrder: which samples a step sees, as a pure function of how many were seen before.

Sample i is tokens [i * n, i * n + n] for sequence length n: n inputs and, one further, n labels. The order of an epoch
is a keyed permutation of (seed, epoch). The whole state is one integer, the samples consumed, which does not know
microbatches, ranks or accumulation: a run resumed with another batch split sees the same samples (gpt-neox #308).
Inputs and labels come out of one draw, and every rank draws the same (DeepSpeed #3131, #5729: labels of another batch).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fullbore.data.permutation import shuffled
from fullbore.data.rows import Rows
from fullbore.errors import DataError

__all__ = ["Draw", "SampleOrder", "Samples", "need_in_vocabulary"]


class Samples(Protocol):
    """What a training loop needs of its data. A step is ``count`` samples, however they are grouped."""

    @property
    def num_samples(self) -> int:
        """Of one epoch."""

    def microbatches(self, consumed: int, *, count: int, num_microbatches: int) -> tuple[Rows, ...]:
        """The ``count`` samples after the first ``consumed``, each in exactly one microbatch."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Consecutive samples of the order."""

    input_ids: NDArray[np.int64]
    """[sample, position]"""

    labels: NDArray[np.int64]
    """[sample, position], already shifted: ``labels[s, i]`` is the token after ``input_ids[s, i]``."""

    sample_ids: NDArray[np.int64]
    """[sample], the samples' indices in the corpus."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleOrder:
    """The samples of ``tokens``, shuffled anew in every epoch."""

    tokens: NDArray[Any]
    _: KW_ONLY
    sequence_length: int
    seed: int
    vocab_size: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise DataError(
                f"one sample of sequence length {self.sequence_length} needs {self.sequence_length + 1} tokens "
                f"(the corpus has {len(self.tokens)}); use a shorter data.sequence_length or more text"
            )

    @property
    def num_samples(self) -> int:
        """Samples of one epoch; the tokens left over at the end, fewer than one sample, are not used."""
        return (len(self.tokens) - 1) // self.sequence_length

    def sample_indices(self, consumed: int, *, count: int) -> NDArray[np.int64]:
        """The indices of the ``count`` samples after the first ``consumed``; they may cross into the next epochs."""
        return shuffled(consumed, count=count, num_samples=self.num_samples, seed=self.seed)

    def draw(self, consumed: int, *, count: int) -> Draw:
        """Those samples themselves."""
        sample_ids = self.sample_indices(consumed, count=count)
        places = sample_ids[:, None] * self.sequence_length + np.arange(self.sequence_length + 1)
        tokens = self.tokens[places].astype(np.int64)
        for sample_id, row in zip(sample_ids, tokens, strict=True):
            need_in_vocabulary(row, vocab_size=self.vocab_size, sample_id=int(sample_id))
        return Draw(input_ids=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy(), sample_ids=sample_ids)

    def microbatches(self, consumed: int, *, count: int, num_microbatches: int) -> tuple[Rows, ...]:
        """Those samples in order, in microbatches of one size."""
        assert count % num_microbatches == 0, (count, num_microbatches)
        draw, each = self.draw(consumed, count=count), count // num_microbatches
        return tuple(
            Rows(draw.input_ids[first : first + each], draw.labels[first : first + each])
            for first in range(0, count, each)
        )


def need_in_vocabulary(tokens: NDArray[np.int64], *, vocab_size: int, sample_id: int) -> None:
    """Raises DataError for an id that the model has no embedding for."""
    if tokens.size and int(tokens.max()) >= vocab_size:
        raise DataError(
            f"sample {sample_id} has token {tokens.max()}, outside the vocabulary of {vocab_size} "
            f"(ids 0 to {vocab_size - 1}); use the tokenizer the model was made for, or a larger vocabulary"
        )
