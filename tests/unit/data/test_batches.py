"""SampleOrder: one draw for inputs and labels, one integer of state."""

from __future__ import annotations

import numpy as np
import pytest

from fullbore.data.batches import Draw, SampleOrder
from fullbore.errors import DataError


def order(*, num_samples: int = 30, seed: int = 0) -> SampleOrder:
    return SampleOrder(np.arange(num_samples * 4 + 1), sequence_length=4, seed=seed, vocab_size=10_000)


def test_labels_are_the_next_tokens_of_the_same_sample() -> None:
    draw = order().draw(0, count=5)
    assert draw.input_ids.dtype == draw.labels.dtype == np.int64
    assert np.array_equal(draw.input_ids, draw.sample_ids[:, None] * 4 + np.arange(4))
    assert np.array_equal(draw.labels, draw.input_ids + 1)


def test_two_ranks_draw_the_same() -> None:
    """DeepSpeed #3131: first and last rank drew separately, and inputs met another batch's labels."""
    first, last = order().draw(8, count=8), order().draw(8, count=8)
    assert np.array_equal(first.input_ids, last.input_ids)
    assert np.array_equal(first.labels, last.labels)
    assert np.array_equal(first.sample_ids, last.sample_ids)


def test_a_later_draw_does_not_change_an_earlier_one() -> None:
    """DeepSpeed #5729: one buffer was reused while the last stage still needed its labels."""
    samples = order()
    first = samples.draw(0, count=4)
    kept = first.labels.copy()
    samples.draw(4, count=4)
    samples.draw(4, count=4).labels[:] = -1
    assert np.array_equal(first.labels, kept)
    assert np.array_equal(samples.draw(0, count=4).labels, kept)


def test_resume_counts_samples_and_not_steps() -> None:
    """gpt-neox #308: b=2, m=4, three steps, resumed with b=1, m=8: the position was not multiplied by m."""
    samples = order()
    consumed, seen = 0, []
    for microbatch_size, microbatches in [(2, 4)] * 3:
        draw = samples.draw(consumed, count=microbatch_size * microbatches)
        seen += draw.sample_ids.tolist()
        consumed += len(draw.sample_ids)
    assert consumed == 24
    for microbatch_size, microbatches in [(1, 8), (4, 1)]:
        for first in range(0, microbatch_size * microbatches, microbatch_size):
            seen += samples.draw(consumed + first, count=microbatch_size).sample_ids.tolist()
        consumed += microbatch_size * microbatches
    assert seen == samples.sample_indices(0, count=36).tolist()


def test_every_epoch_has_each_sample_once_in_another_order() -> None:
    samples = order(num_samples=30)
    epochs = samples.sample_indices(0, count=90).reshape(3, 30)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(30))] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    across = samples.sample_indices(28, count=4)
    assert across.tolist() == [*epochs[0, 28:], *epochs[1, :2]]


def test_the_seed_decides_the_order() -> None:
    assert order(seed=0).sample_indices(0, count=30).tolist() != order(seed=1).sample_indices(0, count=30).tolist()


def test_leftover_tokens_and_the_smallest_corpus() -> None:
    assert SampleOrder(np.arange(12), sequence_length=4, seed=0, vocab_size=12).num_samples == 2
    only: Draw = SampleOrder(np.arange(5), sequence_length=4, seed=0, vocab_size=5).draw(0, count=2)
    assert only.labels.tolist() == [[1, 2, 3, 4]] * 2


def test_too_few_tokens_says_how_many_are_needed() -> None:
    with pytest.raises(DataError, match=r"sequence length 4 needs 5 tokens \(the corpus has 4\); use a shorter"):
        SampleOrder(np.arange(4), sequence_length=4, seed=0, vocab_size=5)


def test_a_token_outside_the_vocabulary_is_named_and_never_reaches_the_model() -> None:
    samples = SampleOrder(np.array([0, 1, 2, 3, 50]), sequence_length=4, seed=0, vocab_size=50)
    with pytest.raises(DataError, match=r"sample 0 has token 50, outside the vocabulary of 50 \(ids 0 to 49\)"):
        samples.draw(0, count=1)
