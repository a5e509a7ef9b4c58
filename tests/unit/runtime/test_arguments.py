from __future__ import annotations

from itertools import pairwise

import pytest

from fullbore.ir.action import Kind
from fullbore.runtime.arguments import with_recomputations
from fullbore.schedules.registry import get

LAYERS = ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_both_copies_of_a_stage_recompute_right_before_their_backward(name: str) -> None:
    """Four ranks, cut once into four. Stage 6 holds the layers of stage 1."""
    plain = get(name).build(4, num_microbatches=8)
    found = with_recomputations(plain, layer_names=LAYERS, edges=(0, 1, 3, 5, 6), recompute=["c"])
    again = [action for order in found.orders for action in order if action.kind is Kind.RECOMPUTE]
    assert {action.stage for action in again} == {1, 6}
    assert len(again) == 8, "each microbatch goes one way"
    followed = [(a, b) for order in found.orders for a, b in pairwise(order) if a.kind is Kind.RECOMPUTE]
    assert all(b.of_kind(Kind.RECOMPUTE) == a for a, b in followed)
    assert not found.overlaps
    without = tuple(tuple(a for a in order if a.kind is not Kind.RECOMPUTE) for order in found.orders)
    assert without == plain.orders
