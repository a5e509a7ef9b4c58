from __future__ import annotations

import pytest

from fullbore.config.layer_names import name_ranges


@pytest.mark.parametrize(
    ("indices", "said"),
    [
        ((0,), "a"),
        ((1, 2), "b to c"),
        ((0, 1, 2, 3, 4), "a to e"),
        ((0, 2, 4), "a, c, e"),
        ((0, 1, 3, 4), "a to b, d to e"),
        ((), ""),
    ],
)
def test_neighbors_are_named_as_a_range_and_layers_between_are_not(indices: tuple[int, ...], said: str) -> None:
    assert name_ranges(indices, layer_names=["a", "b", "c", "d", "e"]) == said
