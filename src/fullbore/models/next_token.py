"""The objective of a causal language model: cross entropy, summed over the labels that count."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullbore.labels import IGNORED_LABEL
from fullbore.models.layered import Microbatch, Objective
from fullbore.models.microbatch import tensor_of
from fullbore.models.token_chunks import TokenChunks

__all__ = ["next_token_objective"]


def next_token_objective() -> Objective:
    """Reads ``labels``, which are already shifted: labels[t] is the target of position t.

    The sum is taken in float32, or in float64 where the logits are; chunk by chunk where a model is told to
    (`fullbore.models.token_chunks`).
    """
    return Objective(loss_sum=_loss_sum, count=_count)


def _loss_sum(given: Tensor | TokenChunks, microbatch: Microbatch) -> Tensor:
    labels = tensor_of(microbatch, key="labels", reader="the last stage")
    if isinstance(given, TokenChunks):
        return given.loss_sum(labels.to(given.hidden.device), _cross_entropy)
    return _cross_entropy(given.flatten(0, -2), labels.flatten().to(given.device))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, labels, ignore_index=IGNORED_LABEL, reduction="sum")


def _count(microbatch: Microbatch) -> int:
    labels = tensor_of(microbatch, key="labels", reader="the objective")
    return int((labels != IGNORED_LABEL).sum())
