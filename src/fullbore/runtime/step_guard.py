"""StepGuard: whether the optimizer step under way counts.

One infinite or undefined number anywhere, in the loss or in a gradient of any stage, would be in every weight after the
update (Megatron-DeepSpeed PR #434; DeepSpeed's pipeline engine in float32 does so). So the step is skipped, on all
ranks, as all of them see the same loss and the same norm. Weights and optimizer are not touched; running statistics
that a forward has counted into already are put back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fullbore.models.statistics import may_hold_statistics
from fullbore.runtime.loss_scale import LossScaler

__all__ = ["StepGuard"]


class StepGuard:
    """Watches from the first `Pipeline.step` after `zero_grad` to the next `zero_grad`."""

    def __init__(self, modules: Iterable[nn.Module], *, scaler: LossScaler | None) -> None:
        self._normalisations = [part for module in modules for part in module.modules() if may_hold_statistics(part)]
        self._scaler = scaler
        self._open = False
        self._before: list[Tensor] = []
        self.finite = True
        """Was everything seen so far a finite number?"""

    def begin(self) -> None:
        """A batch is about to run."""
        if not self._open:
            self._open = True
            self._before = [buffer.clone() for buffer in self._statistics()]

    def saw(self, value: float) -> None:
        """A loss or a norm, the same on every rank."""
        self.finite = self.finite and math.isfinite(value)

    def end(self) -> None:
        """The gradients are let go of: the loss scale follows what was seen."""
        if self._open:
            if self._scaler is not None:
                self._scaler.update(finite=self.finite)
            if not self.finite:
                with torch.no_grad():
                    for buffer, before in zip(self._statistics(), self._before, strict=True):
                        buffer.copy_(before)
        self._open = False
        self._before = []
        self.finite = True

    def _statistics(self) -> list[Tensor]:
        return [buffer for part in self._normalisations for buffer in part.buffers(recurse=False)]
