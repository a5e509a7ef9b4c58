"""The batch arithmetic: what follows from what, and the nearest valid values in every refusal."""

from __future__ import annotations

import pytest

from fullbore.config.run import BatchConfig, BatchSizes, PipelineConfig, RunConfig, batch_sizes
from fullbore.errors import ConfigError


def sizes(*, b: int | None = None, m: int | None = None, total: int | None = None, a: int = 1) -> BatchSizes:
    return batch_sizes(
        RunConfig(
            batch=BatchConfig(microbatch_size=b, global_batch=total, accumulation=a),
            pipeline=PipelineConfig(microbatches=m),
        )
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, BatchSizes(2, 8, 1, 16)),
        ({"b": 4}, BatchSizes(4, 8, 1, 32)),
        ({"m": 4}, BatchSizes(2, 4, 1, 8)),
        ({"total": 24}, BatchSizes(2, 12, 1, 24)),
        ({"total": 7}, BatchSizes(1, 7, 1, 7)),
        ({"total": 16, "b": 4}, BatchSizes(4, 4, 1, 16)),
        ({"total": 16, "m": 4}, BatchSizes(4, 4, 1, 16)),
        ({"total": 16, "m": 4, "b": 4}, BatchSizes(4, 4, 1, 16)),
        ({"total": 16, "m": 4, "a": 2}, BatchSizes(2, 4, 2, 16)),
        ({"a": 3}, BatchSizes(2, 8, 3, 48)),
    ],
)
def test_absent_sizes_follow_from_the_given_ones(given: dict[str, int], expected: BatchSizes) -> None:
    assert sizes(**given) == expected


def test_a_global_batch_that_does_not_divide_names_the_nearest_ones() -> None:
    with pytest.raises(ConfigError, match=r"use batch\.global_batch=8 or 12, or batch\.microbatch_size=2 or 5$"):
        sizes(total=10, b=4)


def test_microbatches_that_do_not_divide_are_refused_and_never_padded() -> None:
    """pytorch #126600: 8 samples in 3 pieces ran as 3, 3, 2 with buffers for 3, 3, 3."""
    with pytest.raises(ConfigError, match=r"use batch\.global_batch=6 or 9, or pipeline\.microbatches=2 or 4$"):
        sizes(total=8, m=3)


def test_a_batch_smaller_than_the_microbatches_has_no_empty_pieces() -> None:
    with pytest.raises(ConfigError, match=r"use batch\.global_batch=4, or pipeline\.microbatches=2$"):
        sizes(total=2, m=4)


def test_three_sizes_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"which is 12 \(batch\.global_batch=10, .*use batch\.global_batch=12"):
        sizes(total=10, b=4, m=3)


def test_accumulation_that_does_not_divide() -> None:
    with pytest.raises(ConfigError, match=r"multiple of batch\.accumulation \* mesh\.data = 3 .*=9 or 12$"):
        sizes(total=10, a=3)


def test_no_batch_is_too_large_for_an_answer() -> None:
    """The nearest sizes that divide are advice, and are not looked for among as many as this. (Whoever does look cannot
    even take the root of it.)"""
    total = 3 * 10**400
    assert sizes(total=total, m=2).microbatch_size == total // 2
    with pytest.raises(ConfigError, match=r"use batch\.global_batch=29+5 or 30+2$"):
        sizes(total=total, m=7)
