"""Receives that block where they stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import InvalidSchedule
from fullbore.ir.explicit import ExplicitSchedule, RecvCell, SendCell, explicit_of
from fullbore.ir.lower import lower
from fullbore.ir.torch_lower import with_transfers
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.explicit import simulate_explicit
from fullbore.timeline.bubble import bubble_of
from tests.timetable import equal_costs, rows, timetable


@pytest.mark.parametrize(
    ("ranks", "microbatches", "delay", "balanced", "early"),
    [(2, 4, 0, 27, 40), (2, 4, 1, 33, 60), (4, 8, 0, 57, 91), (2, 8, 0, 51, 78)],
)
def test_receives_posted_as_soon_as_their_messages_are_sent_hold_up_what_could_run(
    ranks: int, microbatches: int, delay: int, balanced: int, early: int
) -> None:
    """pytorch #172668, torchtitan #2209: where a receive blocks, PyTorch's own placement of it makes an interleaved
    schedule of equal stages slower; right before its use it costs nothing. The stages are not to blame, and the orders
    are the same: what differs is where the communication stands."""
    schedule = get("interleaved-1f1b").build(ranks, num_microbatches=microbatches)
    costs, links = [StageCost(1, 2, 0)] * schedule.num_stages, [Link(delay)] * (schedule.num_stages - 1)
    in_time = explicit_of(lower(schedule), name="before its use")
    as_sent = with_transfers(schedule)
    assert in_time.compute_part().orders == as_sent.compute_part().orders == schedule.orders
    assert simulate(schedule, costs=costs, links=links).compute_end_ns == balanced
    assert simulate_explicit(in_time, costs=costs, links=links).compute_end_ns == balanced
    found = bubble_of(simulate_explicit(as_sent, costs=costs, links=links))
    assert found.makespan_ns == early
    assert set(found.busy_ns) == {6 * microbatches}


def test_one_receive_moved_before_the_next_independent_forward() -> None:
    """pytorch #165664. p = 2, two stages a rank, m = 4."""
    schedule = get("interleaved-1f1b").build(2, num_microbatches=4)
    explicit = explicit_of(lower(schedule), name="explicit")
    row = list(explicit.orders[0])
    late = next(cell for cell in row if isinstance(cell, RecvCell) and cell.stage == 2)
    row.insert(0, row.pop(row.index(late)))
    with pytest.raises(InvalidSchedule, match=r"stalls: 2RECV_F0 is never sent; 1RECV_F0 is never sent"):
        simulate_explicit(replace(explicit, orders=(tuple(row), explicit.orders[1])), costs=equal_costs(4))
    row.insert(2, row.pop(0))
    moved = replace(explicit, orders=(tuple(row), explicit.orders[1]))
    assert list(map(str, row[:6])) == ["0F0", "0SEND_F0", "2RECV_F0", "0F1", "0SEND_F1", "2F0"]
    free = timetable(simulate_explicit(explicit, costs=equal_costs(4)))
    held = timetable(simulate_explicit(moved, costs=equal_costs(4)))
    assert free[0].split()[:4] == ["0", "1", "0", "1"]
    assert held[0].split()[:5] == ["0", ".", "1", "0", "1"]
    assert len(held[0].split()) > len(free[0].split())


def test_a_send_that_is_left_out_is_named() -> None:
    explicit: ExplicitSchedule = with_transfers(get("gpipe").build(2, num_microbatches=1))
    orders = tuple(tuple(cell for cell in row if not isinstance(cell, SendCell)) for row in explicit.orders)
    with pytest.raises(InvalidSchedule, match="'gpipe' stalls: 0RECV_B0 is never sent; 1RECV_F0 is never sent"):
        simulate_explicit(replace(explicit, orders=orders), costs=equal_costs(2))


def test_waits_are_drawn_before_the_action_that_comes_after_the_receive() -> None:
    explicit = with_transfers(get("1f1b").build(2, num_microbatches=2))
    timeline = simulate_explicit(explicit, costs=equal_costs(2), links=[Link(1)])
    assert timetable(timeline) == rows("""
        0 1 . . . 0' . 1'
        . . 0 0' 1 1' . .
    """)
