"""OverSteps: a ratio that every step of a run has measured, and whether the steps agree on what it says.

A run of three short steps on a busy machine names some stage as the slowest, whatever its cut. Of two even stages whose
steps vary by 15 %, chance puts one a tenth above the other in half of all runs of 2 to 4 steps, and in a tenth of those
of 20. What is claimed is held against the noise

    2 x spread / sqrt(n)        spread: the highest of n steps less the lowest; from 6 on without a part at either end

which is about twice the error of a median, whatever n is. Then chance names one in 1 of 6 runs of 2 steps, and in 1 of
14 or fewer of longer ones. Load that lasts for the whole run is in every step, and no spread shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import median

__all__ = ["RECENT_STEPS", "OverSteps"]

RECENT_STEPS = 20
"""The last so many steps are enough to tell what a stage takes."""

_ALL_COUNT = 2
"""(n - 2) // 4 steps are left out at either end: none of up to 5 steps, 1 of 6, 4 of 20."""


@dataclass(frozen=True, slots=True)
class OverSteps:
    """One ratio a step, ascending; at least one."""

    ratios: tuple[float, ...]

    @classmethod
    def of(cls, ratios: Iterable[float]) -> OverSteps:
        return cls(tuple(sorted(ratios)))

    @property
    def num_steps(self) -> int:
        return len(self.ratios)

    @property
    def num_in_spread(self) -> int:
        return self.num_steps - 2 * self._left_out

    @property
    def median(self) -> float:
        return median(self.ratios)

    @property
    def low(self) -> float:
        """Where the spread begins."""
        return self.ratios[self._left_out]

    @property
    def high(self) -> float:
        """Where the spread ends."""
        return self.ratios[-1 - self._left_out]

    @property
    def noise(self) -> float:
        """How far from the median chance can put it. 0.0 for one step, of which nothing is known."""
        return 0.0 if self.low == self.high else 2 * (self.high - self.low) / sqrt(self.num_steps)

    @property
    def is_above_one(self) -> bool:
        """By more than the noise."""
        return self.median - 1 > self.noise

    @property
    def _left_out(self) -> int:
        return max(0, (self.num_steps - _ALL_COUNT) // 4)
