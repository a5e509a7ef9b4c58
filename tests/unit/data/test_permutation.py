"""Keys matter, small sizes are shuffled, and the order never changes between versions of fullbore."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from fullbore.data.permutation import KeyedPermutation


def test_the_order_of_a_key_is_fixed_for_good() -> None:
    """A resumed run continues an order that an older version began."""
    assert KeyedPermutation(12, key="0/0")(np.arange(12)).tolist() == [10, 1, 8, 6, 0, 9, 2, 11, 3, 7, 4, 5]


def test_keys_give_different_orders() -> None:
    orders = {tuple(KeyedPermutation(100, key=f"{seed}/0")(np.arange(100)).tolist()) for seed in range(50)}
    assert len(orders) == 50


def test_every_place_gets_every_element_about_equally_often() -> None:
    counts = np.zeros((10, 10))
    for key in range(2000):
        counts[np.arange(10), KeyedPermutation(10, key=str(key))(np.arange(10))] += 1
    assert counts.min() > 140
    assert counts.max() < 260


def test_all_orders_of_three_occur() -> None:
    orders = Counter(tuple(KeyedPermutation(3, key=str(key))(np.arange(3)).tolist()) for key in range(600))
    assert set(orders) == set(itertools.permutations(range(3)))
    assert min(orders.values()) > 60


def test_no_positions_and_a_single_element() -> None:
    assert KeyedPermutation(5, key="k")(np.arange(0)).tolist() == []
    assert KeyedPermutation(1, key="k")(np.array([0, 0])).tolist() == [0, 0]
