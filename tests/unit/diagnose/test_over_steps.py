from __future__ import annotations

import random
from math import sqrt

import pytest

from fullbore.diagnose.over_steps import OverSteps


def test_the_noise_is_twice_the_spread_over_the_root_of_the_number_of_steps() -> None:
    over = OverSteps.of([1.2, 1.0, 1.1])
    assert (over.num_steps, over.median, over.low, over.high) == (3, 1.1, 1.0, 1.2)
    assert over.noise == pytest.approx(0.4 / sqrt(3))
    assert not over.is_above_one
    assert OverSteps.of([1.2, 1.16, 1.18]).is_above_one


def test_of_one_step_nothing_is_known_and_its_word_counts() -> None:
    assert (OverSteps.of([1.2]).noise, OverSteps.of([1.2]).is_above_one) == (0.0, True)


@pytest.mark.parametrize(("num_steps", "counted"), [(1, 1), (5, 5), (6, 4), (9, 7), (10, 6), (20, 12)])
def test_from_six_steps_on_the_odd_ones_are_left_out(num_steps: int, counted: int) -> None:
    over = OverSteps.of([1.3] * (num_steps - 1) + [9.0])
    assert over.num_in_spread == counted
    assert over.noise == (0.0 if num_steps in (1, 6, 9, 10, 20) else pytest.approx(2 * 7.7 / sqrt(5)))


def test_ranks_that_took_no_time_at_all_are_no_noise() -> None:
    nothing = OverSteps.of([float("inf")] * 3)
    assert (nothing.noise, nothing.is_above_one) == (0.0, True)
    assert not OverSteps.of([float("inf"), 1.0, 2.0]).is_above_one


@pytest.mark.parametrize(("num_steps", "most"), [(2, 0.2), (3, 0.08), (5, 0.08), (6, 0.08), (20, 0.08)])
def test_chance_alone_seldom_names_a_stage(num_steps: int, most: float) -> None:
    """Two even stages whose steps vary by 15 %, each run asked about the one that seems slower."""
    draw, named = random.Random(0), 0
    for _ in range(500):
        ratios = [draw.lognormvariate(0, 0.15) / draw.lognormvariate(0, 0.15) for _ in range(num_steps)]
        slower = ratios if OverSteps.of(ratios).median >= 1 else [1 / ratio for ratio in ratios]
        named += OverSteps.of(slower).is_above_one
    assert named / 500 <= most
