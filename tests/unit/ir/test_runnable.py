from __future__ import annotations

from dataclasses import replace

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.ir.runnable import require_runnable
from fullbore.schedules.registry import REGISTRY
from tests.support.two_ways import shuffled_streams


@pytest.mark.parametrize("name", [name for name, entry in REGISTRY.items() if entry.runnable])
def test_what_is_registered_as_runnable_is(name: str) -> None:
    require_runnable(REGISTRY[name].build(4, num_microbatches=8))


def test_whole_microbatches_on_two_ranks_each_and_both_ways() -> None:
    with pytest.raises(ScheduleError, match=r"seq-1f1b cuts every microbatch into 2 slices"):
        require_runnable(REGISTRY["seq-1f1b"].build(2, num_microbatches=2))
    odd = shuffled_streams(Placement.bidirectional(3), num_microbatches=2, split=False, seed=0)
    with pytest.raises(
        ScheduleError, match=r"has stage 1 and its mirror, stage 4, on rank 1; use an even number of ranks"
    ):
        require_runnable(odd)
    one_way = shuffled_streams(Placement.bidirectional(2), num_microbatches=1, split=False, seed=0)
    with pytest.raises(ScheduleError, match=r"gives the stages \[2, 3\] nothing to do"):
        require_runnable(one_way)


def test_a_schedule_without_backwards_does_not_train() -> None:
    whole = REGISTRY["gpipe"].build(2, num_microbatches=2)
    orders = tuple(tuple(action for action in order if action.kind is Kind.FORWARD) for order in whole.orders)
    with pytest.raises(ScheduleError, match=r"^gpipe has forwards only; to be trained with"):
        require_runnable(replace(whole, orders=orders))
