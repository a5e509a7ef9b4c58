"""SkippedSteps: how many steps updated nothing, and when to give up.

One step with an infinite gradient is bad luck, or float16 looking for its loss scale. Ten in a row are a run that burns
its data and will not come back by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fullbore.errors import RunError

__all__ = ["MOST_IN_A_ROW", "SkippedSteps"]

MOST_IN_A_ROW = 10
"""A run ends at so many skipped steps without one that counts between them. Steps that a smaller loss scale may still
help (a scale above 1) do not count."""


@dataclass(slots=True)
class SkippedSteps:
    """Filled step by step, the same on every rank."""

    number: int = 0
    in_a_row: int = 0

    def note(self, *, finite: bool, loss_scale: float = 1.0) -> int:
        """The number of skipped steps so far, with this one."""
        if finite:
            self.in_a_row = 0
            return self.number
        self.number += 1
        if loss_scale <= 1.0:
            self.in_a_row += 1
        return self.number

    def check(self, values: Mapping[str, float], *, step: int) -> None:
        """Raises RunError after too many in a row. ``values``: of the step, ``loss``, ``grad_norm`` and ``lr``."""
        if self.in_a_row >= MOST_IN_A_ROW:
            raise RunError(
                f"{MOST_IN_A_ROW} steps in a row had a loss or a gradient that is not finite (step {step}: loss "
                f"{values['loss']:.4g}, gradient norm {values['grad_norm']:.4g}, learning rate {values['lr']:.3g}); no "
                "weight was updated by them. Lower optimizer.lr, warm up for longer, look at the data of these steps, "
                "or use another model.dtype"
            )
