from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fullbore.diagnose.slow_stage import Cause, SlowStage
from fullbore.report.slow_stage import render_slow_stage

FOUND = SlowStage(
    stage=2,
    rank=2,
    layers=("layers.4", "layers.5"),
    num_steps=6,
    factor=1.99,
    device_factor=1.98,
    cause=Cause.COMPUTE,
    busy_fraction=0.851,
    rank_busy_fractions=(0.43, 0.44, 0.851, 0.42),
    rank_over_profile=(1.01, 1.0, 2.0, 1.02),
    layers_per_stage=(2, 2, 2, 2),
    better_layers_per_stage=(3, 2, 1, 2),
    step_ns=565_300_000,
    predicted_step_ns=550_000_000,
    better_step_ns=405_000_000,
    gain=1 - 405 / 550,
    least_gain=0.01,
)


def test_a_slow_device_and_the_cut_that_gets_around_it() -> None:
    assert render_slow_stage(FOUND).splitlines() == [
        "slow stage       2 on rank 2 (layers.4 to layers.5): computes 1.99 times as long as the others "
        "(median of 6 steps)",
        "reason           compute, not waiting: rank 2 is busy 85% of the pass; the others, 42% to 44%, wait for it",
        "                 its device: it takes 1.98 times as long for a layer as the others, by the profile",
        "better cut       [3, 2, 1, 2] layers: 405.0 ms a step in place of 550.0 ms (-26.4%), by simulation",
        "                 --set 'pipeline.partition=[3,2,1,2]'",
    ]


HEAD = replace(
    FOUND,
    layers=("head",),
    device_factor=1.0,
    rank_busy_fractions=(0.43, 0.43, 0.851, 0.43),
    rank_over_profile=(1.02, 1.02, 1.05, 1.02),
    better_layers_per_stage=None,
    better_step_ns=None,
    gain=0.0,
)


def test_costly_layers_that_no_cut_makes_better() -> None:
    lines = render_slow_stage(HEAD).splitlines()
    assert lines[0].startswith("slow stage       2 on rank 2 (head): computes")
    assert "the others, 43%, wait for it" in lines[1]
    assert lines[2:] == [
        "                 its layers: they take 1.05 times what the profile says; those of the other ranks, 1.02 times",
        "better cut       none: no cut is simulated to take 1% less than the 550.0 ms a step of [2, 2, 2, 2] layers",
    ]


@pytest.mark.parametrize("over", [(1.6, 1.6, 1.5, 1.6), (1.01, 2.0, 1.02, 1.0), (1.0, 0.7, 0.75, 1.0)])
def test_layers_far_from_their_profile_are_not_said_to_keep_to_it(over: tuple[float, ...]) -> None:
    """Elsewhere, or at home, or in the profile itself. The numbers are told, and what may be behind them."""
    lines = render_slow_stage(replace(HEAD, rank_over_profile=over)).splitlines()
    assert f"they take {over[2]:.2f} times what the profile says; those of the other ranks, " in lines[2]
    assert (
        lines[3]
        == "                 times so far from the profile come from a slow device or other work on the machine"
    )


def test_layers_of_which_the_profile_says_nothing() -> None:
    lines = render_slow_stage(replace(HEAD, rank_over_profile=(None, None, None, None))).splitlines()
    assert lines[2] == "                 its layers: by the profile they take no time"
    alone = render_slow_stage(replace(HEAD, rank_over_profile=(None, None, 1.0, None)))
    assert "its layers: they take 1.00 times what the profile says\n" in alone


def test_a_little_slower_and_no_better_cut_needs_no_reason() -> None:
    lines = render_slow_stage(replace(HEAD, factor=1.17)).splitlines()
    assert lines == [
        "slow stage       2 on rank 2 (head): computes 1.17 times as long as the others (median of 6 steps)",
        "better cut       none: no other cut gains 1%, by simulation",
    ]


def test_on_how_many_steps_it_rests() -> None:
    assert render_slow_stage(replace(FOUND, num_steps=1)).splitlines()[0].endswith("as the others (one step only)")


def test_how_much_a_cut_had_to_gain() -> None:
    """More than the steps differ by."""
    noisy = replace(HEAD, least_gain=0.0412)
    assert re.search(
        r"none: no cut is simulated to take 5% less than the 550\.0 ms .* layers, and the steps differ by as much\n",
        render_slow_stage(noisy),
    )
    assert "none: no other cut gains 5%, by simulation, and the steps differ by as much\n" in render_slow_stage(
        replace(noisy, factor=1.17)
    )


def test_a_rank_that_is_as_busy_does_not_wait() -> None:
    both = replace(FOUND, rank_busy_fractions=(0.78, 0.44, 0.851, 0.42))
    assert "rank 2 is busy 85% of the pass; 2 of the others, 42% to 44%, wait for it" in render_slow_stage(both)


def test_waiting_that_computing_does_not_explain() -> None:
    waits = replace(
        FOUND, cause=Cause.WAITING, busy_fraction=0.405, predicted_step_ns=300_000_000, better_layers_per_stage=None
    )
    assert render_slow_stage(waits).splitlines()[1:] == [
        "reason           waiting, not compute: even rank 2 is busy only 40% of the pass",
        "                 computing explains 300.0 ms of 565.3 ms; transfers or the host take the rest; no cut mends "
        "that",
    ]


def test_waiting_for_the_pipe_to_fill() -> None:
    waits = replace(FOUND, cause=Cause.WAITING, busy_fraction=0.33, better_layers_per_stage=None)
    assert render_slow_stage(waits).splitlines()[-1] == (
        "                 filling and draining take the rest: more microbatches help; no cut mends that"
    )
