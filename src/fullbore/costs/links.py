"""Links: how long a boundary transfer takes, per boundary, never one number for all."""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.errors import CostsError

__all__ = ["MOST_NS", "Link"]

MOST_NS = 2**53
"""A hundred days: a measured delay above it is a slip of the pen, and sums of delays fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Link:
    """The way between stage s and stage s + 1, both directions alike."""

    latency_ns: int = 0
    bytes_per_s: int | None = None
    """None: size does not matter."""

    def __post_init__(self) -> None:
        if self.latency_ns < 0:
            raise CostsError(f"latency_ns must be at least 0 (latency_ns={self.latency_ns})")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise CostsError(f"bytes_per_s must be above 0 (bytes_per_s={self.bytes_per_s})")

    def delay_ns(self, size_bytes: int) -> int:
        """Time from the end of the producer to arrival, for a message of this size.

        Raises:
            CostsError: it would take longer than `MOST_NS`.
        """
        if self.bytes_per_s is None:
            return self.latency_ns
        delay_ns = self.latency_ns + round(size_bytes * 1_000_000_000 / self.bytes_per_s)
        if delay_ns > MOST_NS:
            raise CostsError(
                f"a message of {size_bytes} bytes would take more than a hundred days "
                f"(latency_ns={self.latency_ns}, bytes_per_s={self.bytes_per_s}); use a faster link"
            )
        return delay_ns
