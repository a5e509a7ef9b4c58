"""A step that is not finite changes no running statistics and lowers the loss scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fullbore.runtime.loss_scale import LossScaler
from fullbore.runtime.step_guard import StepGuard


@pytest.mark.parametrize("value", [1.0, math.inf, -math.inf, math.nan])
def test_what_was_seen_decides_over_statistics_and_scale(value: float) -> None:
    norm, scaler = nn.BatchNorm1d(2), LossScaler()
    guard = StepGuard([nn.Sequential(nn.Linear(2, 2), norm)], scaler=scaler)
    guard.begin()
    norm(torch.tensor([[1.0, 2.0], [3.0, value]]))
    guard.begin()  # gradients of two batches add up
    norm(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    for seen in (0.5, value, 2.0):
        guard.saw(seen)
    assert guard.finite is math.isfinite(value)
    guard.end()
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == (2 if math.isfinite(value) else 0)
    assert norm.running_mean is not None
    assert bool(norm.running_mean.any()) is math.isfinite(value)
    assert bool(norm.running_mean.isfinite().all())
    assert scaler.scale == (2.0**16 if math.isfinite(value) else 2.0**15)
    assert guard.finite


def test_an_end_without_a_batch_is_nothing() -> None:
    scaler = LossScaler()
    guard = StepGuard([], scaler=scaler)
    guard.saw(math.nan)
    guard.end()
    assert (scaler.scale, guard.finite) == (2.0**16, True)
