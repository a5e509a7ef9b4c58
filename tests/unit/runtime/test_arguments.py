from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from fullbore.errors import InvalidSchedule, ScheduleError
from fullbore.ir.action import Kind
from fullbore.runtime.arguments import schedule_for, with_recomputations
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


def test_a_schedule_that_is_none_and_one_that_is_only_drawn_are_refused() -> None:
    whole = get("1f1b").build(2, num_microbatches=2)
    sizes: dict[str, Any] = {"num_ranks": 2, "num_microbatches": 2, "num_chunks": None, "options": None}
    with pytest.raises(InvalidSchedule, match="one-order-a-rank"):
        schedule_for(replace(whole, orders=whole.orders[:1]), **sizes)
    with pytest.raises(ScheduleError, match="hanayo is drawn and simulated, and cannot be run; use one of: gpipe"):
        schedule_for("hanayo", **sizes)
