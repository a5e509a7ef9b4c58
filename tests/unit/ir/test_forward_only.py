from __future__ import annotations

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.forward_only import forward_only
from fullbore.ir.placement import Placement
from fullbore.ir.validate import validate
from fullbore.simulate.engine import simulate
from tests.timetable import equal_costs, rows, timetable

GRID = """
    0 1 2 3 . .
    . 0 1 2 3 .
    . . 0 1 2 3
"""


def test_timetable_on_a_line() -> None:
    schedule = forward_only(Placement.linear(3), num_microbatches=4)
    assert timetable(simulate(schedule, costs=equal_costs(3))) == rows(GRID)


@pytest.mark.parametrize("make", [Placement.loop, Placement.snake])
@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_no_placement_can_deadlock(make: object, num_chunks: int) -> None:
    placement = make(3, num_chunks=num_chunks)  # type: ignore[operator]
    validate(forward_only(placement, num_microbatches=5))


def test_sizes_are_checked() -> None:
    with pytest.raises(ScheduleError, match=r"num_microbatches must be at least 1 \(num_microbatches=0\)"):
        forward_only(Placement.linear(2), num_microbatches=0)
