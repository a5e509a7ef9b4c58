from __future__ import annotations

from pathlib import Path

from fullbore.costs.stage import StageCost
from fullbore.report.summary import render_summary
from fullbore.timeline.span import Timeline
from tests.support.timelines import measured, of_schedule

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
    assert "slowest stage    0: computes 12.35 ms a step, 1.00 times the mean" in lines
    assert "ranks idle       20.0% of the pass on average; the busiest rank sets the bubble fraction" in lines
    assert "bubble fraction  20.0% of wall time, predicted 20.0%" in lines
    assert "pipeline pass    15.43 ms, predicted 15.43 ms (+0.0%)" in lines
    assert "clocks           agree to 12.3 us; shorter waits mean nothing" in lines
    assert "imbalance" not in text
    assert max(map(len, lines)) <= 90


def test_an_uneven_run_names_the_stage_and_says_it_is_not_waiting() -> None:
    lines = render_summary(UNEVEN, predicted=EVEN, width=90, run_dir=Path("runs/first")).splitlines()
    assert "slowest stage    1: computes 20.00 ms a step, 1.33 times the mean" in lines
    assert (
        "stage 1 computes 33% more than the mean: imbalance, not waiting; "
        "`fullbore partition runs/first -p 2` cuts by what the stages of this run took"
    ) in lines
    assert "every span: `fullbore trace export runs/first -o trace.json`, then open it in ui.perfetto.dev" in lines


def test_where_waiting_is_the_larger_loss_it_is_not_called_imbalance_alone() -> None:
    """One microbatch: each stage waits for the whole of the other."""
    step = measured(ranks=2, microbatches=1, forwards=[1_000_000, 2_000_000])
    text = render_summary(step, predicted=None, width=90)
    assert "stage 1 computes 33% more than the mean: imbalance, and more than that is lost to waiting" in text


def test_the_advice_says_how_many_stages_a_rank_has() -> None:
    costs = [StageCost(1000, 1000, 0)] * 3 + [StageCost(2000, 2000, 0)]
    step = of_schedule("looped-bfs", ranks=2, microbatches=4, costs=costs)
    text = render_summary(step, predicted=None, width=90, run_dir=Path("runs/first"), schedule="looped-bfs")
    assert "`fullbore partition runs/first -p 2 -v 2 --schedule looped-bfs` cuts by" in text


def test_without_a_prediction_nothing_is_compared() -> None:
    text = render_summary(EVEN, predicted=None, width=90)
    assert "bubble fraction  20.0% of wall time (not predicted)" in text
    assert "trace export" not in text


def test_a_step_without_work_is_only_drawn() -> None:
    assert render_summary(Timeline(1, ()), predicted=None, width=90) == "measured step\n(an empty timeline)\n"
