"""The order of samples is a bijection for every size and key, and does not depend on how it is asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fullbore.data.batches import SampleOrder
from fullbore.data.permutation import KeyedPermutation


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**62), epoch=st.integers(0, 1000))
def test_every_element_occurs_once(size: int, seed: int, epoch: int) -> None:
    order = KeyedPermutation(size, key=f"{seed}/{epoch}")(np.arange(size))
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(2**40, 2**62), positions=st.lists(st.integers(0, 2**40 - 1), unique=True, max_size=50))
def test_large_sizes_stay_inside_and_do_not_collide(size: int, positions: list[int]) -> None:
    order = KeyedPermutation(size, key="key")(np.array(positions, dtype=np.int64)).tolist()
    assert len(set(order)) == len(positions)
    assert all(0 <= element < size for element in order)


@given(size=st.integers(1, 500), positions=st.lists(st.integers(0, 499), max_size=20))
def test_one_position_at_a_time_gives_the_same(size: int, positions: list[int]) -> None:
    permutation = KeyedPermutation(size, key="7/0")
    places = np.array([position % size for position in positions], dtype=np.int64)
    singly = [int(permutation(places[i : i + 1])[0]) for i in range(len(places))]
    assert permutation(places).tolist() == singly


@given(
    num_samples=st.integers(1, 60),
    consumed=st.integers(0, 300),
    cuts=st.lists(st.integers(0, 30), min_size=1, max_size=8),
)
def test_a_draw_in_pieces_is_the_draw_in_one(num_samples: int, consumed: int, cuts: list[int]) -> None:
    order = SampleOrder(np.arange(num_samples * 4 + 1) % 251, sequence_length=4, seed=3, vocab_size=251)
    whole = order.draw(consumed, count=sum(cuts))
    position = consumed
    pieces = []
    for cut in cuts:
        pieces.append(order.draw(position, count=cut))
        position += cut
    for field in ("input_ids", "labels", "sample_ids"):
        assert np.array_equal(getattr(whole, field), np.concatenate([getattr(piece, field) for piece in pieces]))
