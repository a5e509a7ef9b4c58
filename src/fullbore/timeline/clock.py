"""ClockOffset: how far one rank's clock is from rank 0's. Spans of different ranks are compared on rank 0's."""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.errors import TraceError

__all__ = ["ClockOffset"]


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """One measurement: rank 0's clock = this rank's clock + ``offset_ns``, give or take ``uncertainty_ns``."""

    offset_ns: int
    uncertainty_ns: int
    at_ns: int | None = None
    """This rank's clock when it was measured. None: at the first span (opening) or the last one (closing)."""

    def __post_init__(self) -> None:
        if self.uncertainty_ns < 0:
            raise TraceError(f"a clock uncertainty is at least 0 ns (given {self.uncertainty_ns})")
