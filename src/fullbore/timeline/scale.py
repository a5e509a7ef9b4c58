"""TimeScale: how the integers of a timeline are written for a person.

A simulated timeline counts ticks (several to one unit of the caller's cost, so that chunks divide evenly), a
measured one nanoseconds. Drawings divide by ``per_unit`` and append ``suffix``; nothing else differs.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TimeScale"]


@dataclass(frozen=True, slots=True)
class TimeScale:
    """``per_unit`` integers of the timeline make one written unit."""

    per_unit: int = 1
    suffix: str = ""

    @classmethod
    def milliseconds(cls) -> TimeScale:
        """For measured timelines."""
        return cls(1_000_000, " ms")

    def format(self, value: int) -> str:
        """``33``, ``28.5`` or ``12.4 ms``: at most three decimals for units, three digits or so for time."""
        number = value / self.per_unit
        if not self.suffix:
            return f"{number:.3f}".rstrip("0").rstrip(".")
        decimals = 0 if abs(number) >= 1000 else 1 if abs(number) >= 100 else 2 if abs(number) >= 1 else 3
        return f"{number:.{decimals}f}{self.suffix}"

    def ticks(self, span: int, *, at_most: int) -> tuple[int, ...]:
        """Round positions (1, 2 or 5 times a power of ten) from 0 to ``span``, for an axis."""
        if span <= 0:
            return (0,)
        size = 10.0**-6
        while True:
            for factor in (1, 2, 5):
                step = factor * size * self.per_unit
                if step >= 1 and span / step <= at_most:
                    return tuple(round(i * step) for i in range(int(span / step) + 1))
            size *= 10

    def axis_label(self, value: int) -> str:
        """A tick's number, without the suffix and without needless zeros."""
        return f"{value / self.per_unit:.6f}".rstrip("0").rstrip(".")
