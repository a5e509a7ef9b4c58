from __future__ import annotations

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.forward_only import forward_only
from fullbore.ir.placement import Placement
from fullbore.ir.validate import validate
from fullbore.simulate.engine import simulate
from tests.timetable import equal_costs, rows, timetable, timetable_of_chunks

GRID = """
    0 1 2 3 . .
    . 0 1 2 3 .
    . . 0 1 2 3
"""


def test_timetable_on_a_line() -> None:
    schedule = forward_only(Placement.linear(3), num_microbatches=4)
    assert timetable(simulate(schedule, costs=equal_costs(3))) == rows(GRID)


def test_a_group_of_microbatches_comes_round_without_a_gap() -> None:
    """One microbatch at a time would leave p - 1 of p slots idle."""
    schedule = forward_only(Placement.loop(2, num_chunks=2), num_microbatches=4)
    assert timetable_of_chunks(simulate(schedule, costs=equal_costs(4))) == rows("""
        0 1 a b 2 3 c d .
        . 0 1 a b 2 3 c d
    """)


@pytest.mark.parametrize("make", [Placement.loop, Placement.snake])
@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_no_placement_can_deadlock(make: object, num_chunks: int) -> None:
    placement = make(3, num_chunks=num_chunks)  # type: ignore[operator]
    validate(forward_only(placement, num_microbatches=5))


def test_sizes_are_checked() -> None:
    with pytest.raises(ScheduleError, match=r"num_microbatches must be at least 1 \(num_microbatches=0\)"):
        forward_only(Placement.linear(2), num_microbatches=0)
