from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fullbore.report.slow_stage import render_slow_stage
from fullbore.report.summary import render_summary
from fullbore.timeline.span import Timeline
from tests.support.timelines import measured
from tests.unit.report.test_slow_stage import FOUND

EVEN = measured(ranks=2, microbatches=4, start_ns=10**15)
UNEVEN = measured(ranks=2, microbatches=4, forwards=[1_000_000, 2_000_000])


def test_an_even_run_shows_the_step_the_table_and_the_numbers_side_by_side() -> None:
    text = render_summary(EVEN, predicted=EVEN, width=90, step=7, schedule="1f1b", clock_uncertainty_ns=12_300)
    lines = text.splitlines()
    assert lines[0] == "measured step 7 of 1f1b"
    assert lines[2].startswith("r0 F0")
    assert "rank  stages          busy          idle       waiting  busy share" in lines
    assert "   0  0           12.35 ms       3.09 ms       3.09 ms      80.0%" in lines
    assert "   1  1           12.35 ms       3.09 ms      0.000 ms      80.0%" in lines
    assert "slowest stage    0: computes 12.35 ms in this step; 1.00 times the mean (one step only)" in lines
    assert "ranks idle       20.0% of the pass on average; the busiest rank sets the bubble fraction" in lines
    assert "bubble fraction  20.0% of wall time, predicted 20.0%" in lines
    assert "pipeline pass    15.43 ms, predicted 15.43 ms (+0.0%)" in lines
    assert "clocks           agree to 12.3 us; shorter waits mean nothing" in lines
    assert max(map(len, lines)) <= 90


def test_an_uneven_run_names_the_slow_stage_before_where_to_look_next() -> None:
    lines = render_summary(UNEVEN, predicted=EVEN, width=90, slow_stage=FOUND, run_dir=Path("runs/first")).splitlines()
    assert "slowest stage    1: computes 20.00 ms in this step; 1.33 times the mean (one step only)" in lines
    assert lines[-7:-2] == render_slow_stage(FOUND).splitlines()
    assert lines[-1] == "every span: `fullbore trace export runs/first -o trace.json`, then open it in ui.perfetto.dev"


@pytest.mark.parametrize(
    ("second_over_first", "said"),
    [
        ((2.0, 1.9, 2.1), "1: 1.33 times the mean (mostly 1.31 to 1.35 in 3 steps)"),
        ((1.1, 0.9, 1.2), "1: 1.05 times the mean, within the noise (mostly 0.96 to 1.09 in 3 steps)"),
        ((2.0, 1.9, 2.1, 2.0, 0.5, *[2.0] * 4), "1: 1.33 times the mean (mostly 1.32 to 1.33 in 9 steps)"),
        ((0.9, 1.2, 1.2, 1.2, 1.2), "1: 1.09 times the mean (mostly 1.02 to 1.09 in 5 steps)"),
        ((2.0, 0.5, 0.5), "0: 1.33 times the mean, within the noise (mostly 0.73 to 1.33 in 3 steps)"),
        ((2.0, 0.5), "0: 1.00 times the mean, within the noise (0.67 to 1.33 in 2 steps)"),
        ((1.0, 1.0), "0: 1.00 times the mean, so the stages are even (1.00 to 1.00 in 2 steps)"),
    ],
    ids=["slow", "noise", "an odd step", "not slow in the drawn step", "slow in the drawn step", "in turn", "even"],
)
def test_the_slowest_stage_is_that_of_all_steps_that_count(second_over_first: Sequence[float], said: str) -> None:
    """The first of which is drawn: there another stage may be the slowest."""
    steps = [measured(ranks=2, microbatches=4, forwards=[10**6, round(10**6 * over)]) for over in second_over_first]
    lines = render_summary(steps[0], predicted=None, width=90, steps=steps).splitlines()
    (line,) = (line for line in lines if line.startswith("slowest stage"))
    stage, _, rest = line.removeprefix("slowest stage").strip().partition(": computes ")
    assert f"{stage}: {rest.partition(' in this step; ')[2]}" == said


def test_nothing_slow_is_not_talked_about() -> None:
    assert "slow stage" not in render_summary(UNEVEN, predicted=EVEN, width=90, run_dir=Path("runs/first"))


def test_without_a_prediction_nothing_is_compared() -> None:
    text = render_summary(EVEN, predicted=None, width=90)
    assert "bubble fraction  20.0% of wall time (not predicted)" in text
    assert "trace export" not in text


def test_a_step_without_work_is_only_drawn() -> None:
    assert render_summary(Timeline(1, ()), predicted=None, width=90) == "measured step\n(an empty timeline)\n"
