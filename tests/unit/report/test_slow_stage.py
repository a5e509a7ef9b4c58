from __future__ import annotations

from dataclasses import replace

from fullbore.diagnose.slow_stage import Cause, SlowStage
from fullbore.report.slow_stage import render_slow_stage

FOUND = SlowStage(
    stage=2,
    rank=2,
    layers=("layers.4", "layers.5"),
    factor=1.99,
    device_factor=1.98,
    cause=Cause.COMPUTE,
    busy_fraction=0.851,
    rank_busy_fractions=(0.43, 0.44, 0.851, 0.42),
    layers_per_stage=(2, 2, 2, 2),
    better_layers_per_stage=(3, 2, 1, 2),
    step_ns=565_300_000,
    predicted_step_ns=550_000_000,
    better_step_ns=405_000_000,
    gain=1 - 405 / 550,
)


def test_a_slow_device_and_the_cut_that_gets_around_it() -> None:
    assert render_slow_stage(FOUND).splitlines() == [
        "slow stage       2 on rank 2 (layers.4 to layers.5): computes 1.99 times as long as the others",
        "reason           compute, not waiting: rank 2 is busy 85% of the pass; the others, 42% to 44%, wait for it",
        "                 its device: it takes 1.98 times as long for a layer as the others, by the profile",
        "better cut       [3, 2, 1, 2] layers: 405.0 ms a step in place of 550.0 ms (-26.4%), by simulation",
        "                 --set 'pipeline.partition=[3,2,1,2]'",
    ]


def test_costly_layers_that_no_cut_makes_better() -> None:
    head = replace(
        FOUND,
        layers=("head",),
        device_factor=1.0,
        rank_busy_fractions=(0.43, 0.43, 0.851, 0.43),
        better_layers_per_stage=None,
        better_step_ns=None,
        gain=0.0,
    )
    lines = render_slow_stage(head).splitlines()
    assert lines[0].startswith("slow stage       2 on rank 2 (head): computes")
    assert "the others, 43%, wait for it" in lines[1]
    assert lines[2:] == [
        "                 its layers: they take what the profile says, compared with those of the other ranks",
        "better cut       none: [2, 2, 2, 2] layers are simulated to take 550.0 ms a step, and no cut 1% less",
    ]


def test_a_rank_that_is_as_busy_does_not_wait() -> None:
    both = replace(FOUND, rank_busy_fractions=(0.82, 0.44, 0.851, 0.42))
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
