"""Sizes: what a schedule is made for, checked once and then passed around as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fullbore.errors import ScheduleError

__all__ = ["Sizes", "even_beside", "require_sizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """p ranks, m microbatches, v chunks a rank, and the schedule's own options, none absent."""

    num_ranks: int
    num_microbatches: int
    num_chunks: int = 1
    options: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.num_chunks

    @property
    def num_slices(self) -> int:
        """Into how many slices sequences are cut."""
        return self.options.get("slices", 1)


def require_sizes(name: str, **sizes: int) -> None:
    """Raise `ScheduleError` unless every size is an integer of at least 1."""
    for size, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            given = ", ".join(f"{key}={other}" for key, other in sizes.items())
            raise ScheduleError(f"{name} needs {size} of at least 1 ({given}); use 1 or more")


def even_beside(number: int) -> str:
    """The even numbers of at least 2 next to an odd one: ``4 or 6`` of 5, ``2`` of 1."""
    return f"{number - 1} or {number + 1}" if number > 1 else "2"
