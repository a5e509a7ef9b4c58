"""The timetable of every schedule, written out: a forward and a backward take one tick each."""

from __future__ import annotations

import pytest

from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from tests.timetable import equal_costs, rows, timetable

TIMETABLES = [
    (
        "gpipe",
        4,
        4,
        """
        0  1  2  3  .  .  .  .  .  .  0' 1' 2' 3'
        .  0  1  2  3  .  .  .  .  0' 1' 2' 3' .
        .  .  0  1  2  3  .  .  0' 1' 2' 3' .  .
        .  .  .  0  1  2  3  0' 1' 2' 3' .  .  .
        """,
    ),
    (
        "1f1b",
        4,
        4,
        """
        0  1  2  3  .  .  .  0' .  1' .  2' .  3'
        .  0  1  2  .  .  0' 3  1' .  2' .  3' .
        .  .  0  1  .  0' 2  1' 3  2' .  3' .  .
        .  .  .  0  0' 1  1' 2  2' 3  3' .  .  .
        """,
    ),
    (
        "1f1b",
        4,
        8,
        """
        0  1  2  3  .  .  .  0' 4  1' 5  2' 6  3' 7  4' .  5' .  6' .  7'
        .  0  1  2  .  .  0' 3  1' 4  2' 5  3' 6  4' 7  5' .  6' .  7' .
        .  .  0  1  .  0' 2  1' 3  2' 4  3' 5  4' 6  5' 7  6' .  7' .  .
        .  .  .  0  0' 1  1' 2  2' 3  3' 4  4' 5  5' 6  6' 7  7' .  .  .
        """,
    ),
    (
        "eager-1f1b",
        4,
        6,
        """
        0  1  2  3  4  5  .  0' .  1' .  2' .  3' .  4' .  5'
        .  0  1  2  3  4  0' 5  1' .  2' .  3' .  4' .  5' .
        .  .  0  1  2  0' 3  1' 4  2' 5  3' .  4' .  5' .  .
        .  .  .  0  0' 1  1' 2  2' 3  3' 4  4' 5  5' .  .  .
        """,
    ),
    (
        "1f1b",
        4,
        2,
        """
        0  1  .  .  .  .  .  0' .  1'
        .  0  1  .  .  .  0' .  1' .
        .  .  0  1  .  0' .  1' .  .
        .  .  .  0  0' 1  1' .  .  .
        """,
    ),
    ("1f1b", 1, 2, "0 0' 1 1'"),
    ("gpipe", 1, 2, "0 1 0' 1'"),
    ("eager-1f1b", 2, 1, "0 . . 0'\n. 0 0' ."),
]


@pytest.mark.parametrize(("name", "num_ranks", "num_microbatches", "expected"), TIMETABLES)
def test_timetable(name: str, num_ranks: int, num_microbatches: int, expected: str) -> None:
    schedule = get(name).build(num_ranks, num_microbatches=num_microbatches)
    assert timetable(simulate(schedule, costs=equal_costs(num_ranks))) == rows(expected)


def test_extra_warmup_is_a_lead_over_the_next_rank() -> None:
    schedule = get("1f1b").build(3, num_microbatches=6, options={"extra_warmup": 2})
    assert timetable(simulate(schedule, costs=equal_costs(3))) == rows("""
        0  1  2  3  4  5  0' .  1' .  2' 3' .  4' .  5'
        .  0  1  2  3  0' 4  1' 5  2' 3' .  4' .  5' .
        .  .  0  0' 1  1' 2  2' 3  3' 4  4' 5  5' .  .
    """)
    assert [
        get("1f1b").peak(get("1f1b").sizes(3, num_microbatches=6, options={"extra_warmup": 2}), r) for r in (0, 1, 2)
    ] == [6, 4, 1]


def test_one_forward_more_for_each_rank_downstream_is_eager() -> None:
    eager = get("eager-1f1b").build(5, num_microbatches=7)
    assert get("1f1b").build(5, num_microbatches=7, options={"extra_warmup": 1}).orders == eager.orders


ORDERS = {
    "gpipe": ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"],
    "1f1b": ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"],
    "eager-1f1b": ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"],
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders(name: str) -> None:
    orders = get(name).build(2, num_microbatches=3).orders
    assert [" ".join(map(str, order)) for order in orders] == ORDERS[name]
