from __future__ import annotations

import pytest

from fullbore.errors import TraceError
from fullbore.timeline.clock import ClockOffset
from fullbore.trace.clock import Alignment


def test_one_measurement_is_a_constant_offset() -> None:
    alignment = Alignment(ClockOffset(-500, 20), None, 0, 0)
    assert [alignment.to_rank_zero(time) for time in (0, 10**15 + 1)] == [-500, 10**15 - 499]


def test_two_measurements_are_a_line_exact_at_both() -> None:
    alignment = Alignment(ClockOffset(100, 20), ClockOffset(400, 90), 1_000, 31_000)
    assert alignment.to_rank_zero(1_000) == 1_100
    assert alignment.to_rank_zero(16_000) == 16_250
    assert alignment.to_rank_zero(31_000) == 31_400
    assert alignment.uncertainty_ns == 90


def test_a_drifting_clock_never_runs_backwards() -> None:
    alignment = Alignment(ClockOffset(0, 0), ClockOffset(-999, 0), 0, 10_000)
    moved = [alignment.to_rank_zero(time) for time in range(10_000)]
    assert moved == sorted(moved)


def test_a_negative_uncertainty_is_refused() -> None:
    with pytest.raises(TraceError, match=r"at least 0 ns \(given -1\)"):
        ClockOffset(0, -1)
