"""Clocks of a run: every rank has its own, and spans are compared on rank 0's.

Merging ranks by their raw clocks gives a plausible picture that is wrong, so a rank without a measured offset is
refused. Clocks also drift; with a second measurement at the end of the run the offset in between is interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.timeline.clock import ClockOffset

__all__ = ["Alignment"]


@dataclass(frozen=True, slots=True)
class Alignment:
    """From one rank's clock to rank 0's: a straight line through two measurements, or one constant offset."""

    opening: ClockOffset
    closing: ClockOffset | None
    opening_at_ns: int
    closing_at_ns: int

    @property
    def uncertainty_ns(self) -> int:
        return max(self.opening.uncertainty_ns, self.closing.uncertainty_ns if self.closing else 0)

    def to_rank_zero(self, time_ns: int) -> int:
        """Integer arithmetic throughout, and monotone: spans that did not overlap still do not."""
        length = self.closing_at_ns - self.opening_at_ns
        if self.closing is None or length <= 0:
            return time_ns + self.opening.offset_ns
        drift = self.closing.offset_ns - self.opening.offset_ns
        return time_ns + self.opening.offset_ns + (time_ns - self.opening_at_ns) * drift // length
