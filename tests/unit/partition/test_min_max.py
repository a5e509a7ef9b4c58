from __future__ import annotations

from collections import Counter

import pytest

from fullbore.errors import PartitionError
from fullbore.partition.equal import equal
from fullbore.partition.min_max import min_max


def test_five_equal_layers_over_four_leave_no_stage_empty() -> None:
    """DeepSpeed PR #4312 gave 2 2 1 0: the same bottleneck, and an idle rank."""
    assert min_max([1] * 5, num_stages=4) == (2, 1, 1, 1)


def test_forty_two_equal_blocks_over_sixteen() -> None:
    assert Counter(min_max([1] * 42, num_stages=16)) == {3: 10, 2: 6}


def test_thirty_eight_equal_blocks_over_eight() -> None:
    """DeepSpeed PR #4053: a floor-based split puts ten on the last stage."""
    assert Counter(min_max([7] * 38, num_stages=8)) == {5: 6, 4: 2}


@pytest.mark.parametrize(("layers", "stages", "bottleneck"), [(30, 4, 8), (10, 3, 4), (27, 4, 7)])
def test_every_layer_is_placed_where_counts_do_not_divide(layers: int, stages: int, bottleneck: int) -> None:
    counts = min_max([1] * layers, num_stages=stages)
    assert (sum(counts), max(counts)) == (layers, bottleneck)


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(PartitionError, match=r"num_stages=4, layers=3\); use 3 stages or fewer"):
        min_max([1, 1, 1], num_stages=4)


def test_among_equal_bottlenecks_the_most_even_wins() -> None:
    """The 9 stands alone either way; what is left may be 8 and 2, or 5 and 5."""
    assert min_max([5, 3, 2, 9], num_stages=3) == (1, 2, 1)


def test_the_bottleneck_comes_before_evenness() -> None:
    """5 5 1 has the larger squares and the lower bottleneck than 2 3 6."""
    assert min_max([2, 3, 5, 1], num_stages=3) == (2, 1, 1)


def test_layers_that_cost_nothing_are_spread_too() -> None:
    assert min_max([0, 0, 0, 0], num_stages=2) == (2, 2)


def test_a_limit_on_stages_moves_the_cut() -> None:
    """The first stage may hold one layer only, as when it keeps the most microbatches."""
    assert min_max([1] * 4, num_stages=2, allowed=lambda stage, first, end: stage > 0 or end - first <= 1) == (1, 3)
    with pytest.raises(PartitionError, match="within the limits"):
        min_max([1] * 4, num_stages=2, allowed=lambda stage, first, end: end - first <= 1)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(PartitionError, match=r"at least 0 \(layer 1: -2\)"):
        min_max([1, -2], num_stages=1)


def test_embed_and_head_count_as_layers_in_the_equal_split() -> None:
    assert equal(8 + 2, num_stages=2) == (5, 5)
    assert equal(10, num_stages=4) == (3, 3, 2, 2)
    with pytest.raises(PartitionError, match="num_stages=11, layers=10"):
        equal(10, num_stages=11)
