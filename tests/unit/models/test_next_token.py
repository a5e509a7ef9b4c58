"""The language model's objective: a float32 sum over the labels that count, which are already shifted."""

from __future__ import annotations

import pytest
import torch

from fullbore.errors import ModelError
from fullbore.models.next_token import next_token_objective


def test_sum_and_count() -> None:
    objective = next_token_objective()
    logits = torch.tensor([[[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]])
    batch = {"labels": torch.tensor([[1, 0, -100]])}
    assert objective.count(batch) == 2
    assert objective.loss_sum(logits, batch).item() == pytest.approx(0.6931472, abs=1e-6)


def test_the_sum_is_wide() -> None:
    objective = next_token_objective()
    batch = {"labels": torch.zeros(1, 4, dtype=torch.long)}
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert objective.loss_sum(torch.zeros(1, 4, 3, dtype=dtype), batch).dtype == wide


def test_all_ignored_is_zero_not_nan() -> None:
    objective = next_token_objective()
    batch = {"labels": torch.full((1, 2), -100)}
    assert (objective.count(batch), objective.loss_sum(torch.ones(1, 2, 3), batch).item()) == (0, 0.0)


def test_missing_labels_are_named() -> None:
    with pytest.raises(ModelError, match=r"the last stage reads 'labels' .*it holds input_ids"):
        next_token_objective().loss_sum(torch.ones(1, 2, 3), {"input_ids": torch.ones(1, 2)})
