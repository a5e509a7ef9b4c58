"""Accumulation: several rounds of m microbatches make one step, the first step like every other.

DeepSpeed #3911, ColossalAI #1035: the boundary of the accumulation was lost inside the pipeline: the first window
behaved differently, and the list of losses grew.
"""

from __future__ import annotations

import pytest

from fullbore.runtime.processes.launch import launch
from tests.support.ranks import PRELOAD

STEPS, LR = 3, 1e-3


def test_three_steps_of_two_rounds_are_three_updates() -> None:
    """CHAIN with its batch twice: the loss is the mean, so each step is a step of plain gradient descent."""
    w1, w2 = 2.0, 3.0
    losses = []
    for _ in range(STEPS):
        losses.append(7.5 * (w1 * w2) ** 2)  # the mean of x squared is 7.5
        w1, w2 = w1 - LR * 15 * w1 * w2**2, w2 - LR * 15 * w1**2 * w2
    by_rank = launch("tests.support.large_ranks:accumulated", STEPS, LR, num_ranks=2, preload=PRELOAD)
    assert losses[0] == 270.0
    for seen, weight in zip(by_rank, (w1, w2), strict=True):
        assert seen[0] == pytest.approx(losses, rel=1e-5)
        assert seen[1] == pytest.approx(weight, rel=1e-5)
        assert seen[2] == STEPS
