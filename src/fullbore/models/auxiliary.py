"""Auxiliary losses: what a layer in the middle adds to the objective.

A mixture of experts balances its load by a loss of each router; others penalise activations. In a pipeline such a
layer may be on any stage, far from the objective. So it says its loss where it is:

    def forward(self, x):
        h = self.linear(x)
        fullbore.auxiliary_loss(0.01 * h.square().mean())
        return h

Backward of that stage starts from it as well. The value is a mean over the layer's microbatch; it counts with the
microbatch's share of the samples of the whole global batch. So neither the number of stages nor of microbatches
changes its size. (Peers dropped it on middle stages, or let it grow with either: Automodel PR #1412, megablocks #64,
torchtitan PR #2061; recomputation counted it twice in torchtitan PR #4772.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from fullbore.errors import ModelError
from fullbore.models.layered import Microbatch

__all__ = ["auxiliary_loss", "collecting", "num_samples"]

_COLLECTED: ContextVar[list[Tensor] | None] = ContextVar("fullbore_auxiliary_losses", default=None)

_COUNTED = ("input_ids", "inputs", "labels")
"""Whose rows are the samples, the first that is there."""


def auxiliary_loss(value: Tensor) -> Tensor:
    """Add ``value``, a scalar that is a mean over the microbatch, to the objective of this step; gives it back.

    The step's loss contains it. Where no step is under way (evaluation, a layer's second forward, the model by
    itself) nothing is added: a held-out loss is the objective's alone.

    Raises:
        ModelError: not a tensor of one number.
    """
    collected = _COLLECTED.get()
    if collected is not None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ModelError(f"fullbore.auxiliary_loss takes one number as a tensor (given {given}); use .mean()")
        collected.append(value.reshape(()))
    return value


@contextmanager
def collecting() -> Iterator[list[Tensor]]:
    """Inside, auxiliary losses of this thread go into the list."""
    found: list[Tensor] = []
    token = _COLLECTED.set(found)
    try:
        yield found
    finally:
        _COLLECTED.reset(token)


def num_samples(microbatch: Microbatch) -> int:
    """Rows of a microbatch, in which its share of the global batch is counted: of ``input_ids``, ``inputs`` or
    ``labels``, else of the first tensor by name. What stands beside them, as a mask ``[length, length]``, may have
    others.

    Raises:
        ModelError: that tensor, and every other, has no dimension.
    """
    names = [key for key in _COUNTED if key in microbatch] + sorted(microbatch)
    for name in names:
        if microbatch[name].dim():
            return len(microbatch[name])
    raise ModelError(
        f"a microbatch has its samples along dimension 0 (no tensor of it has one: {', '.join(sorted(microbatch))})"
    )
