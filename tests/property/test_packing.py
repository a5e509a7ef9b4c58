"""Packing over random documents: each exactly once, never worse than in order, close to what is possible at all."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fullbore.data.packing import Packing, PackingCost, in_order, pack

LENGTHS = st.lists(st.integers(1, 1024), min_size=1, max_size=60)
COSTS = st.sampled_from([PackingCost(), PackingCost(1.0, 0.01), PackingCost(0.0, 1.0)])


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], int]:
    lengths = draw(LENGTHS)
    return lengths, draw(st.integers(1, len(lengths)))


def largest(packing: Packing) -> float:
    return max(packing.costs)


@given(batches(), COSTS)
def test_every_document_once_and_never_worse_than_in_order(batch: tuple[list[int], int], cost: PackingCost) -> None:
    lengths, count = batch
    packing = pack(lengths, num_microbatches=count, cost=cost)
    assert len(packing.groups) == count
    assert all(packing.groups), "no empty microbatch"
    assert sorted(index for group in packing.groups for index in group) == list(range(len(lengths)))
    assert packing.tokens == tuple(sum(lengths[i] for i in group) for group in packing.groups)
    assert sum(packing.tokens) == sum(lengths)
    assert largest(packing) <= largest(in_order(lengths, num_microbatches=count, cost=cost))


@given(st.lists(st.integers(1, 1024), min_size=3, max_size=7), st.integers(2, 3), COSTS)
def test_within_the_proven_bound_of_the_best_of_all_groupings(
    lengths: list[int], count: int, cost: PackingCost
) -> None:
    """Longest first is within 4/3 - 1/(3m) of the optimum (Graham 1969), and the better of two methods counts."""
    best = min(
        max(sum(cost.of(length) for length, own in zip(lengths, placed, strict=True) if own == g) for g in range(count))
        for placed in product(range(count), repeat=len(lengths))
        if len(set(placed)) == count
    )
    packed = largest(pack(lengths, num_microbatches=count, cost=cost))
    assert best * (1 - 1e-9) <= packed <= best * (4 / 3 - 1 / (3 * count)) * (1 + 1e-9)


@given(batches(), COSTS)
def test_a_limit_that_the_order_keeps_is_kept(batch: tuple[list[int], int], cost: PackingCost) -> None:
    lengths, count = batch
    limit = max(in_order(lengths, num_microbatches=count).tokens)
    packing = pack(lengths, num_microbatches=count, cost=cost, max_tokens=limit)
    assert max(packing.tokens) <= limit


@given(batches())
def test_the_same_lengths_give_the_same_groups(batch: tuple[list[int], int]) -> None:
    lengths, count = batch
    assert pack(lengths, num_microbatches=count) == pack(list(lengths), num_microbatches=count)
