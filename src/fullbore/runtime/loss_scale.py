"""LossScaler: keeps float16 gradients in the range where float16 has numbers.

Below 6e-8 a float16 is zero, and gradients of large models are there. So the loss is multiplied before backward and the
gradients are divided when they enter their float32 accumulators (P. Micikevicius et al., "Mixed Precision Training",
arXiv 1710.03740, section 3.2). The scale is found while training: too large a one makes a gradient infinite, that step
is skipped on every rank and the scale is halved; it is doubled after 2000 steps without. These are the rule and the
numbers of `torch.amp.GradScaler`. The norm over all stages decides, so every rank takes the same scale.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LossScaler"]


class LossScaler:
    """The scale of the steps to come."""

    def __init__(
        self, *, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, growth_interval: int = 2000
    ) -> None:
        """Powers of two lose no bit."""
        self._scale = scale
        self._growth = growth
        self._backoff = backoff
        self._growth_interval = growth_interval
        self._good_steps = 0

    @property
    def scale(self) -> float:
        """What the loss is multiplied by."""
        return self._scale

    def update(self, *, finite: bool) -> None:
        """After each step: were all its gradients finite?"""
        if not finite:
            self._scale *= self._backoff
            self._good_steps = 0
            return
        self._good_steps += 1
        if self._good_steps == self._growth_interval:
            self._scale *= self._growth
            self._good_steps = 0

    def state(self) -> dict[str, float]:
        """What a checkpoint saves: ``scale`` and ``good_steps``."""
        return {"scale": self._scale, "good_steps": float(self._good_steps)}

    def load(self, state: Mapping[str, float]) -> None:
        """Continue from what `state` gave."""
        self._scale = state["scale"]
        self._good_steps = int(state["good_steps"])
