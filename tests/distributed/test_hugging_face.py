"""Hugging Face models whose stages exchange more than hidden states, on real gloo processes."""

from __future__ import annotations

import pytest

from tests.support.hf_ranks import MODELS, compared


@pytest.mark.parametrize(("schedule", "ranks"), [("1f1b", 3), ("interleaved-1f1b", 2)])
def test_one_step_equals_one_process(schedule: str, ranks: int) -> None:
    """An encoder's output, a router's logits, chunks of the head; a tied embedding sums over its uses."""
    by_rank = compared(*MODELS, schedule=schedule, num_ranks=ranks)
    for index, name in enumerate(MODELS):
        expected = by_rank[0][index].expected
        covered: set[str] = set()
        for seen in (rank[index] for rank in by_rank):
            assert seen.loss == pytest.approx(seen.expected_loss, rel=1e-12), name
            for key, gradient in seen.gradients.items():
                largest = float(expected[key].abs().max())
                assert float((gradient - expected[key]).abs().max()) <= 1e-9 * largest + 1e-16, (name, key)
            covered |= seen.gradients.keys()
        assert covered == expected.keys(), name
