"""Closed forms against worked numbers, and against the simulation of every registered schedule."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fullbore.errors import ScheduleError
from fullbore.schedules.formulas import bubble_fraction, bubble_overhead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from tests.timetable import equal_costs


def percent(share: Fraction) -> float:
    return round(float(share) * 100, 2)


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "idle"),
    [(8, 1, 87.5), (8, 4, 64), (8, 8, 47), (8, 32, 18), (8, 128, 5), (4, 4, 43), (4, 16, 16), (4, 32, 9)],
)
def test_idle_shares_known_to_everyone(num_ranks: int, num_microbatches: int, idle: float) -> None:
    fraction = bubble_fraction(num_ranks, num_microbatches=num_microbatches)
    assert percent(fraction) == pytest.approx(idle, abs=0.5)
    for name in ("gpipe", "1f1b", "eager-1f1b"):
        schedule = get(name).build(num_ranks, num_microbatches=num_microbatches)
        bubble = bubble_of(simulate(schedule, costs=equal_costs(num_ranks)))
        assert bubble.bubble_fraction == pytest.approx(float(fraction), abs=1e-12)


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "fraction", "overhead"),
    [(4, 8, 27.27, 37.5), (8, 176, 3.83, 3.98), (4, 1, 75, 300)],
)
def test_fraction_and_overhead_are_two_things(
    num_ranks: int, num_microbatches: int, fraction: float, overhead: float
) -> None:
    """One is a share of wall time, the other is relative to ideal compute time."""
    assert percent(bubble_fraction(num_ranks, num_microbatches=num_microbatches)) == fraction
    assert percent(bubble_overhead(num_ranks, num_microbatches=num_microbatches)) == overhead
    schedule = get("1f1b").build(num_ranks, num_microbatches=num_microbatches)
    bubble = bubble_of(simulate(schedule, costs=equal_costs(num_ranks)))
    assert round(bubble.bubble_fraction * 100, 2) == fraction
    assert round(bubble.bubble_overhead * 100, 2) == overhead


def test_interleaving_divides_the_overhead_by_the_chunks() -> None:
    assert bubble_overhead(4, num_microbatches=8, num_chunks=2) == Fraction(3, 16)
    assert bubble_fraction(4, num_microbatches=8, num_chunks=2) == Fraction(3, 19)
    for name in ("interleaved-1f1b", "looped-bfs"):
        schedule = get(name).build(4, num_microbatches=8)
        bubble = bubble_of(simulate(schedule, costs=equal_costs(8)))
        assert bubble.bubble_fraction == pytest.approx(3 / 19, abs=1e-12)


def test_sizes_are_checked() -> None:
    with pytest.raises(ScheduleError, match="a bubble needs num_microbatches of at least 1"):
        bubble_fraction(4, num_microbatches=0)
