from __future__ import annotations

import random
import re
from statistics import mean

import pytest

from fullbore.data.packing import PackingCost, in_order, pack
from fullbore.errors import DataError


def test_differencing_finds_the_even_split_that_longest_first_misses() -> None:
    """8, 7, 6, 5, 4 in two: longest first gives 17 and 13, differencing 16 and 14."""
    assert sorted(pack([8, 7, 6, 5, 4], num_microbatches=2).tokens) == [14, 16]


def test_an_order_that_is_even_already_is_not_made_worse() -> None:
    """Differencing gives 10, 9 and 8, longest first 11, 8 and 8."""
    assert pack([3, 3, 3, 5, 4, 5, 4], num_microbatches=3).tokens == (9, 9, 9)


def test_in_order_is_what_a_batch_is_without_packing() -> None:
    assert in_order([9, 1, 5, 2, 7, 3, 1, 4], num_microbatches=3).groups == ((0, 1, 2), (3, 4, 5), (6, 7))


def test_where_documents_are_many_microbatches_are_alike() -> None:
    """Lengths like those of real text: log-normal, eight documents a microbatch."""
    source = random.Random(0)
    lengths = [min(1024, 1 + int(source.lognormvariate(5, 1))) for _ in range(64)]
    costs = in_order(lengths, num_microbatches=8).costs, pack(lengths, num_microbatches=8).costs
    plain, packed = (mean(each) / max(each) for each in costs)
    assert plain < 0.75
    assert packed > 0.98


def test_pairs_make_long_documents_dearer() -> None:
    """By tokens 4 balances 1+1+1+1; by pairs it costs 16 against 4, and shares with nothing."""
    assert sorted(pack([4, 1, 1, 1, 1], num_microbatches=2).tokens) == [4, 4]
    by_pairs = pack([4, 2, 2, 2, 2], num_microbatches=2, cost=PackingCost(0.0, 1.0))
    assert sorted(by_pairs.tokens) == [4, 8]
    assert sorted(by_pairs.costs) == [16.0, 16.0]


def test_the_lightest_microbatches_fill_and_drain_the_pipe() -> None:
    costs = pack([7, 5, 9, 4, 8], num_microbatches=5).costs
    assert costs == (4.0, 9.0, 8.0, 7.0, 5.0)


def test_a_limit_on_tokens_is_kept_where_the_order_does_not_keep_it() -> None:
    """Pairs alone would put all short documents together."""
    lengths = [10, 10, *[1] * 8, 4, 4]
    free = pack(lengths, num_microbatches=3, cost=PackingCost(0.0, 1.0))
    assert max(free.tokens) > 12
    assert max(pack(lengths, num_microbatches=3, cost=PackingCost(0.0, 1.0), max_tokens=12).tokens) == 12


@pytest.mark.parametrize(
    ("lengths", "count", "limit", "said"),
    [
        ([3, 4], 3, None, "(2 documents, 3 microbatches); use 3 documents or more, or at most 2 microbatches"),
        ([3, 0], 2, None, "every document has a token (document 1 has 0)"),
        ([3], 0, None, "at least 1 microbatch (num_microbatches=0)"),
        ([9, 9, 9], 2, 17, "of 27 tokens (the longest document has 9) into 2 microbatches of at most 17 was found; "),
        ([9, 9, 9], 2, 17, "allow 18 tokens, or use more microbatches"),
    ],
)
def test_what_cannot_be_packed_says_what_could(lengths: list[int], count: int, limit: int | None, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        pack(lengths, num_microbatches=count, max_tokens=limit)


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0), (float("inf"), 0.0)])
def test_a_cost_that_weighs_nothing_is_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="weights of 0 or more, not both 0"):
        PackingCost(*weights)
