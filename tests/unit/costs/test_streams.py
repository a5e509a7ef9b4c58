from __future__ import annotations

import pytest

from fullbore.costs.links import Link
from fullbore.costs.streams import links_over, sizes_over, stages_over
from fullbore.errors import CostsError
from fullbore.ir.placement import Placement

TWO_WAYS = Placement.bidirectional(3)
A, B = Link(1), Link(2)


def test_layers_are_mirrored_and_links_stay_where_they_are() -> None:
    """Rank 0 holds runs a and c, so it sends what leaves run a downwards and takes in, upwards, what leaves run b."""
    assert stages_over("abc", TWO_WAYS) == ("a", "b", "c", "c", "b", "a")
    assert sizes_over((7, 8), TWO_WAYS) == (7, 8, 0, 8, 7)
    assert links_over((A, B), TWO_WAYS) == (A, B, Link(), A, B)


def test_with_one_stream_nothing_changes() -> None:
    snake = Placement.snake(2, num_chunks=2)
    assert stages_over("abcd", snake) == ("a", "b", "c", "d")
    assert sizes_over((7, 8, 9), snake) == (7, 8, 9)
    assert links_over((A, B, A), snake) == (A, B, A)


def test_no_links_stay_none_and_a_wrong_number_is_refused() -> None:
    assert links_over((), TWO_WAYS) == ()
    with pytest.raises(CostsError, match=r"one link for each of the 2 boundaries \(given 5\)"):
        links_over((A, B, A, B, A), TWO_WAYS)
