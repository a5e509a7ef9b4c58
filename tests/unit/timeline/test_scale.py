from __future__ import annotations

import pytest

from fullbore.timeline.scale import TimeScale
from fullbore.timeline.shift import from_zero, shifted
from tests.support.timelines import measured


@pytest.mark.parametrize(("value", "text"), [(33, "33"), (57, "57"), (0, "0")])
def test_ticks_are_plain_numbers(value: int, text: str) -> None:
    assert TimeScale().format(value) == text


def test_two_ticks_a_unit_are_halves() -> None:
    assert TimeScale(2).format(57) == "28.5"


@pytest.mark.parametrize(
    ("value", "text"),
    [(123, "0.000 ms"), (456_000, "0.456 ms"), (12_345_678, "12.35 ms"), (123_456_789, "123.5 ms")],
)
def test_milliseconds_have_three_digits_or_so(value: int, text: str) -> None:
    assert TimeScale.milliseconds().format(value) == text


def test_an_axis_has_round_numbers_from_zero() -> None:
    assert TimeScale().ticks(33, at_most=5) == (0, 10, 20, 30)
    assert [TimeScale(2).axis_label(t) for t in TimeScale(2).ticks(3, at_most=4)] == ["0", "0.5", "1", "1.5"]
    assert TimeScale().ticks(0, at_most=5) == (0,)


def test_moving_a_timeline_moves_every_span() -> None:
    assert shifted(from_zero(measured(start_ns=77)), by_ns=77) == measured(start_ns=77)
    assert from_zero(measured(start_ns=77)).compute_start_ns == 0
