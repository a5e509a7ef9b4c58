"""OverSteps: a ratio that every step of a run has measured, and whether the steps agree on what it says.

A run of three short steps on a busy machine names some stage as the slowest, whatever its cut. Of two even stages whose
steps vary by 15 %, chance puts one a tenth above the other in half of all runs of 2 to 4 steps, and in a tenth of those
of 20. What is claimed is held against the noise

    2 x spread / sqrt(n)        spread: from above the lowest fifth of n steps to below the highest; of 2 steps, all

which of many steps is 2.7 times the standard error of their median, if they vary normally. Then chance puts one of the
two even stages above the noise and a tenth above the other, as `fullbore.diagnose.slow_stage` asks, in

    steps        2        3       4       5       6       7      10      20
    of runs    17.6 %   7.4 %   4.0 %   3.1 %   2.5 %   3.0 %   1.9 %   1.2 %

Load that lasts for the whole run is in every step, and no spread shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import median

__all__ = ["RECENT_STEPS", "OverSteps"]

RECENT_STEPS = 20
"""The last so many steps are enough to tell what a stage takes."""

_ODD = 0.2
"""The share of steps at either end that the spread leaves out: other work on the machine made them odd."""


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
    def median(self) -> float:
        return median(self.ratios)

    @property
    def low(self) -> float:
        """Where the spread begins."""
        return self._at(self._left_out)

    @property
    def high(self) -> float:
        """Where the spread ends."""
        return self._at(self.num_steps - 1 - self._left_out)

    @property
    def noise(self) -> float:
        """How far from the median chance can put it. 0.0 for one step, of which nothing is known."""
        return 2 * (self.high - self.low) / sqrt(self.num_steps)

    @property
    def is_above_one(self) -> bool:
        """By more than the noise."""
        return self.median - 1 > self.noise

    @property
    def _left_out(self) -> float:
        """Steps, in parts of one: each stands for the share 1/n of all, itself in the middle of it (Hazen)."""
        return max(0.0, _ODD * self.num_steps - 0.5)

    def _at(self, position: float) -> float:
        """The ratio there, counted from 0; between two, as much of either as it is near."""
        below, above = self.ratios[floor(position)], self.ratios[ceil(position)]
        return below if below == above else below + (above - below) * (position - floor(position))
