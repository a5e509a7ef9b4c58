"""ScheduleEntry: what a published schedule tells about itself, so that one registry line is enough to add it.

The formulas hold for equal stages, free links and any costs with F + B = T; property tests compare every registered
schedule with them over random sizes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from fullbore.errors import ScheduleError
from fullbore.ir.schedule import Schedule
from fullbore.schedules.sizes import Sizes, require_sizes

__all__ = ["Option", "ScheduleEntry"]


_MOST = 5_000_000
"""Forwards of a schedule: beyond it an answer takes minutes and the memory of a large machine."""


@dataclass(frozen=True, slots=True)
class Option:
    """A whole number that a schedule takes beside its sizes."""

    name: str
    default: int
    summary: str
    least: int = 0


def _fits(sizes: Sizes) -> None:
    """The constraint of a schedule that exists for all sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    """One published schedule."""

    name: str
    summary: str
    """One line."""

    paper: str
    """First author, title, arXiv id."""

    constraints: str
    """The sizes it exists for, in words."""

    make: Callable[[Sizes], Schedule]
    """The schedule as a pure function of sizes that `check` has passed."""

    check: Callable[[Sizes], None] = _fits
    """Raises `ScheduleError` with the nearest valid sizes where the schedule does not exist."""

    chunks: int = 1
    """Its own number of stages per rank, used unless the caller gives one."""

    takes_chunks: bool = False
    """May the caller give another number of stages per rank?"""

    options: tuple[Option, ...] = ()
    splits_backward: bool = False
    """Does it run I and W in place of B?"""

    peak: Callable[[Sizes, int], int]
    """(sizes, rank) -> most activations alive at once, one for each (stage, microbatch): v of them are one share."""

    span: Callable[[Sizes, int], Fraction | None]
    """(sizes, T) -> first start to last end, where one microbatch takes T = F + B on every rank's whole share; None
    where no closed form is known for these sizes."""

    def sizes(
        self,
        num_ranks: int,
        *,
        num_microbatches: int,
        num_chunks: int | None = None,
        options: Mapping[str, int] | None = None,
    ) -> Sizes:
        """The sizes with every default filled in.

        Raises:
            ScheduleError: a size below 1, chunks or an option the schedule does not take, or sizes it does not
                exist for; names the nearest valid ones.
        """
        chunks = self.chunks if num_chunks is None else num_chunks
        require_sizes(self.name, num_ranks=num_ranks, num_microbatches=num_microbatches)
        require_sizes(self.name, num_chunks=chunks)
        if chunks != self.chunks and not self.takes_chunks:
            raise ScheduleError(
                f"{self.name} has {self.chunks} {'stage' if self.chunks == 1 else 'stages'} per rank "
                f"(num_chunks={chunks}); use {self.chunks}"
            )
        if num_ranks * num_microbatches * chunks > _MOST:
            raise ScheduleError(
                f"a schedule of {num_ranks} ranks, {num_microbatches} microbatches and {chunks} chunks has more than "
                f"{_MOST:,} forwards; use smaller sizes"
            )
        found = Sizes(
            num_ranks=num_ranks,
            num_microbatches=num_microbatches,
            num_chunks=chunks,
            options=MappingProxyType(self._options(options or {})),
        )
        self.check(found)
        return found

    def build(
        self,
        num_ranks: int,
        *,
        num_microbatches: int,
        num_chunks: int | None = None,
        options: Mapping[str, int] | None = None,
    ) -> Schedule:
        """The schedule for these sizes. Raises as `sizes` does."""
        return self.make(
            self.sizes(num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, options=options)
        )

    def _options(self, given: Mapping[str, int]) -> dict[str, int]:
        known = {option.name: option for option in self.options}
        for name, value in given.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
                raise ScheduleError(f"{self.name} has no option {name!r}; {hint}")
            if isinstance(value, bool) or not isinstance(value, int) or value < known[name].least:
                raise ScheduleError(
                    f"option {name} of {self.name} is a whole number of at least {known[name].least} (given {value!r})"
                )
        return {option.name: given.get(option.name, option.default) for option in self.options}
