"""Ten skipped steps in a row end a run; what a smaller loss scale may still help does not count."""

from __future__ import annotations

import pytest

from fullbore.errors import RunError
from fullbore.train.skipped import SkippedSteps

VALUES = {"loss": float("nan"), "grad_norm": float("inf"), "lr": 0.5}


def test_ten_in_a_row_end_the_run_and_nine_do_not() -> None:
    skipped = SkippedSteps()
    for step in range(1, 10):
        assert skipped.note(finite=False) == step
        skipped.check(VALUES, step=step)
    assert skipped.note(finite=True) == 9
    for step in range(11, 20):
        skipped.note(finite=False)
        skipped.check(VALUES, step=step)
    assert skipped.note(finite=False) == 19
    with pytest.raises(RunError, match=r"10 steps in a row .*\(step 20: loss nan, gradient norm inf, .* 0\.5\).*Lower"):
        skipped.check(VALUES, step=20)


def test_a_loss_scale_that_is_still_looked_for_does_not_count() -> None:
    skipped = SkippedSteps()
    scale = 2.0**16
    for step in range(1, 27):
        skipped.note(finite=False, loss_scale=scale)
        scale /= 2
        if step < 26:
            skipped.check(VALUES, step=step)
    assert skipped.number == 26
    with pytest.raises(RunError, match="use another model"):
        skipped.check(VALUES, step=26)
