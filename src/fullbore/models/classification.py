"""The objective of a classifier of samples: cross entropy, summed over the samples that count."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullbore.labels import IGNORED_LABEL
from fullbore.models.layered import Microbatch, Objective
from fullbore.models.microbatch import tensor_of

__all__ = ["classification_objective"]


def classification_objective() -> Objective:
    """Reads ``labels``: one class for each sample, or -100 for one that does not count.

    The sum is taken in float32, or in float64 where the logits are.
    """
    return Objective(loss_sum=_loss_sum, count=_count)


def _loss_sum(logits: Tensor, microbatch: Microbatch) -> Tensor:
    labels = tensor_of(microbatch, key="labels", reader="the last stage")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, labels.to(logits.device), ignore_index=IGNORED_LABEL, reduction="sum")


def _count(microbatch: Microbatch) -> int:
    labels = tensor_of(microbatch, key="labels", reader="the objective")
    return int((labels != IGNORED_LABEL).sum())
