"""The head in pieces: logits of some tokens at a time, made again in the backward, so that all never exist at once.

Logits are [tokens, vocabulary]: at 8,192 tokens and 128,000 entries 4 GiB in float32, several times over in the loss.
So the last stage stops in front of the head's projection, and the loss runs what follows (the projection, and whatever
scale or soft cap the model's own forward has after it) for a few tokens at a time under a checkpoint. For the same
reason a split backward does not put off the projection's weight gradient: it would keep the gradients of all logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fullbore.models.split_backward.split_forward import at_once

__all__ = ["TokenChunks"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenChunks:
    """What a last stage gives instead of logits."""

    hidden: Tensor
    """`[batch, seq, width]`, what the projection reads."""

    head: Callable[[Tensor], Tensor]
    """`[tokens, width]` -> `[tokens, vocabulary]`."""

    size: int
    """Tokens at a time."""

    def loss_sum(self, labels: Tensor, of_logits: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The sum over chunks of ``of_logits``, given `[tokens, vocabulary]` and `[tokens]`."""

        def one(hidden: Tensor, labels: Tensor) -> Tensor:
            with at_once():
                logits = self.head(hidden)
            return of_logits(logits, labels)

        sums = []
        pieces = torch.split(self.hidden.flatten(0, -2), self.size)
        for hidden, some in zip(pieces, torch.split(labels.flatten(), self.size), strict=True):
            if torch.is_grad_enabled():
                sums.append(checkpoint(one, hidden, some, use_reentrant=False))
            else:
                sums.append(one(hidden, some))
        return torch.stack(sums).sum()
