from __future__ import annotations

import pytest

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ids import StageIndex
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from tests.timetable import equal_costs, rows, timetable


def test_it_is_done_while_the_gradient_is_on_its_way() -> None:
    """The drawing of the file."""
    schedule = recompute_ahead(get("1f1b").build(2, num_microbatches=2))
    assert timetable(simulate(schedule, costs=equal_costs(2))) == rows("""
        0 1 0r .  0' 1r .  1'
        . 0 0r 0' 1  1r 1' .
    """)
    inside = simulate(get("1f1b").build(2, num_microbatches=2), costs=equal_costs(2, backward_input=2))
    assert timetable(inside) == rows("""
        0 1 .  .  0' 0' .  1' 1'
        . 0 0' 0' 1  1' 1' .  .
    """)


def test_the_way_back_no_longer_waits_for_it() -> None:
    """Inside the backward (m + p - 1) (F + R + B); ahead of it p - 1 times R less."""
    one = get("1f1b").build(4, num_microbatches=8)
    inside = simulate(one, costs=[StageCost(1, 3, 0)] * 4)
    ahead = simulate(recompute_ahead(one), costs=[StageCost(1, 2, 0)] * 4)
    assert (inside.compute_end_ns, ahead.compute_end_ns) == (44, 41)


def test_some_stages_only_and_never_twice() -> None:
    schedule = recompute_ahead(get("zb-h1").build(2, num_microbatches=2), stages=[StageIndex(1)])
    orders = [" ".join(map(str, order)) for order in schedule.orders]
    assert orders == ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1R0 1I0 1F1 1R1 1I1 1W0 1W1"]
    with pytest.raises(ScheduleError, match="'zb-h1' recomputes already"):
        recompute_ahead(schedule)
