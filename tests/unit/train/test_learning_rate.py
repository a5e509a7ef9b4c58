"""The learning rate at every corner of its three shapes."""

from __future__ import annotations

import math

import pytest

from fullbore.config.run import OptimizerConfig
from fullbore.train.learning_rate import learning_rate


def rates(steps: int, **changes: object) -> list[float]:
    config = OptimizerConfig(**{"lr": 1.0, "warmup_steps": 0, **changes})  # type: ignore[arg-type]
    return [learning_rate(step, config=config, steps=steps) for step in range(steps)]


def test_warmup_is_linear_and_its_first_step_learns() -> None:
    assert rates(6, warmup_steps=4, decay="none") == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_goes_from_the_full_rate_to_the_final_one() -> None:
    values = rates(5, decay="cosine", final_lr_fraction=0.1)
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    assert values == pytest.approx(expected)
    assert values == pytest.approx([1.0, 0.8682, 0.55, 0.2318, 0.1], abs=1e-4)


def test_cosine_begins_at_the_full_rate_right_after_the_warmup() -> None:
    values = rates(8, warmup_steps=3, decay="cosine", final_lr_fraction=0.0)
    assert values[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert values[-1] == pytest.approx(0.0)
    assert values[3:] == sorted(values[3:], reverse=True)


def test_wsd_is_constant_and_then_linear() -> None:
    values = rates(10, warmup_steps=2, decay="wsd", wsd_decay_fraction=0.4, final_lr_fraction=0.2)
    assert values == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_wsd_without_a_decay_is_constant() -> None:
    assert rates(4, decay="wsd", wsd_decay_fraction=0.0) == [1.0] * 4


def test_a_warmup_longer_than_the_run_never_reaches_the_full_rate() -> None:
    assert rates(2, warmup_steps=4, decay="cosine") == [0.25, 0.5]


@pytest.mark.parametrize("decay", ["cosine", "wsd", "none"])
def test_steps_past_the_end_keep_the_final_rate(decay: str) -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=0, decay=decay)  # type: ignore[arg-type]
    assert learning_rate(25, config=config, steps=10) == pytest.approx(1.0 if decay == "none" else 0.1)


def test_a_run_of_one_step() -> None:
    assert rates(1, decay="cosine") == [1.0]
