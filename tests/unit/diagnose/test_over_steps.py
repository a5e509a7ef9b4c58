from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from fullbore.diagnose.over_steps import OverSteps


def test_the_noise_is_twice_the_spread_over_the_root_of_the_number_of_steps() -> None:
    over = OverSteps.of([1.2, 1.0])
    assert (over.num_steps, over.median, over.low, over.high) == (2, 1.1, 1.0, 1.2)
    assert over.noise == pytest.approx(0.4 / sqrt(2))
    assert not OverSteps.of([1.2, 1.0, 1.1]).is_above_one
    assert OverSteps.of([1.2, 1.16, 1.18]).is_above_one


def test_of_one_step_nothing_is_known_and_its_word_counts() -> None:
    assert (OverSteps.of([1.2]).noise, OverSteps.of([1.2]).is_above_one) == (0.0, True)


@pytest.mark.parametrize(
    ("num_steps", "low", "high"), [(1, 0, 0), (2, 0, 1), (3, 0.1, 1.9), (5, 0.5, 3.5), (6, 0.7, 4.3), (20, 3.5, 15.5)]
)
def test_the_spread_leaves_out_a_fifth_at_either_end(num_steps: int, low: float, high: float) -> None:
    over = OverSteps.of(range(num_steps))
    assert [over.low, over.high] == pytest.approx([low, high])


def test_an_odd_step_of_many_is_no_noise() -> None:
    """Of five it still is."""
    assert OverSteps.of([1.3] * 7 + [9.0]).noise == 0.0
    assert not OverSteps.of([1.3] * 4 + [9.0]).is_above_one


@pytest.mark.parametrize(("num_steps", "spread"), [(2, 0.3), (3, 0.3), (6, 0.3)])
def test_a_stage_that_takes_twice_as_long_is_named_after_few_steps(num_steps: int, spread: float) -> None:
    assert OverSteps.of(np.linspace(2 - spread / 2, 2 + spread / 2, num_steps)).is_above_one


@pytest.mark.parametrize(
    ("num_steps", "share"), [(2, 0.176), (3, 0.074), (5, 0.031), (6, 0.025), (10, 0.019), (20, 0.012)]
)
def test_chance_alone_seldom_names_a_stage(num_steps: int, share: float) -> None:
    """Of two even stages whose steps vary by 15 %, the one that seems slower, where it does by more than a tenth."""
    draws = 6000
    first, second = np.random.default_rng(0).lognormal(0, 0.15, (2, draws, num_steps))
    over_other = np.where(np.median(first / second, axis=1, keepdims=True) < 1, second / first, first / second)
    tenth = over_other[np.median(over_other, axis=1) > 1.1]
    over_mean = 2 * tenth / (1 + tenth)
    named = sum(OverSteps.of(ratios).is_above_one for ratios in over_mean.tolist())
    assert named / draws == pytest.approx(share, rel=0.3)
