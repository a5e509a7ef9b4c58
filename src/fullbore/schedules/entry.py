"""ScheduleEntry: what a published schedule tells about itself, so that one registry line is enough to add it.

A schedule is a pure function of sizes and costs. Who has sizes only asks `ScheduleEntry.build`; who knows stage times,
links or a memory cap hands over `ScheduleCosts`, made for the placement that `ScheduleEntry.place` gives. The formulas
hold for equal stages and free links; property tests compare every registered schedule with them over random sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.nearest import nearest
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.sizes import Sizes, require_sizes
from fullbore.shown import shown

__all__ = ["Option", "ScheduleEntry"]


_MOST = 1_000_000
"""Forwards of a schedule: there an answer takes up to three minutes and two gigabytes, and both grow with them."""

_MOST_RANKS = 4096
"""Beyond it an answer takes minutes for a single microbatch: bounds look at every stage from every rank."""


@dataclass(frozen=True, slots=True)
class Option:
    """A whole number that a schedule takes beside its sizes."""

    name: str
    default: int
    summary: str
    least: int = 0


def _fits(sizes: Sizes) -> None:
    """The constraint of a schedule that exists for all sizes."""


def _loop(sizes: Sizes) -> Placement:
    """Stage s on rank s mod p."""
    return Placement.loop(sizes.num_ranks, num_chunks=sizes.num_chunks)


def _unknown(sizes: Sizes, share: StageCost) -> None:
    """No closed form: simulate it."""


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

    construct: Callable[[Sizes, ScheduleCosts], Schedule]
    """The schedule as a pure function of sizes that `check` has passed, and of costs, which most do not look at."""

    place: Callable[[Sizes], Placement] = _loop
    """Which rank runs which stage: what costs are given for."""

    check: Callable[[Sizes], None] = _fits
    """Raises `ScheduleError` with the nearest valid sizes where the schedule does not exist."""

    chunks: int = 1
    """Its own number of stages per rank, used unless the caller gives one."""

    chunks_of: Callable[[Mapping[str, int]], int] | None = None
    """The same where an option decides it."""

    takes_chunks: bool = False
    """May the caller give another number of stages per rank?"""

    options: tuple[Option, ...] = ()
    splits_backward: bool = False
    """Does it run I and W in place of B, everywhere or here and there?"""

    cost_driven: bool = False
    """Does its order depend on costs?"""

    own_cap: Callable[[Sizes], int] | None = None
    """Most shares of memory that a rank keeps where no cap is given; None: the sizes alone decide, or there is none."""

    runnable: bool = True
    """False: for drawing and simulation only; no engine runs it."""

    peak: Callable[[Sizes, int], int]
    """(sizes, rank) -> most activations alive at once, one for each forward: `Schedule.forwards_per_share` of
    them are one share."""

    peak_is_exact: bool = True
    """False: it keeps at most as many as `peak` says."""

    span: Callable[[Sizes, StageCost], Fraction | None] = _unknown
    """(sizes, share) -> first start to last end, where one microbatch takes ``share`` on every rank's whole share; None
    where no closed form is known for these sizes and costs."""

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
        settings = MappingProxyType(self._options(options or {}))
        own = self.chunks if self.chunks_of is None else self.chunks_of(settings)
        chunks = own if num_chunks is None else num_chunks
        require_sizes(self.name, num_ranks=num_ranks, num_microbatches=num_microbatches)
        require_sizes(self.name, num_chunks=chunks)
        if chunks != own and not self.takes_chunks:
            raise ScheduleError(
                f"{self.name} has {own} {'stage' if own == 1 else 'stages'} per rank (num_chunks={chunks}); use {own}"
            )
        if num_ranks > _MOST_RANKS:
            raise ScheduleError(f"a schedule has at most {_MOST_RANKS:,} ranks (num_ranks={num_ranks}); use fewer")
        found = Sizes(
            num_ranks=num_ranks,
            num_microbatches=num_microbatches,
            num_chunks=chunks,
            options=settings,
        )
        if num_ranks * num_microbatches * chunks * found.num_slices > _MOST:
            cut = "" if found.num_slices == 1 else f", each in {found.num_slices} slices,"
            raise ScheduleError(
                f"a schedule of {num_ranks} ranks, {chunks} chunks and {num_microbatches} microbatches{cut} has more "
                f"than {_MOST:,} forwards; use smaller sizes"
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
        costs: ScheduleCosts | None = None,
    ) -> Schedule:
        """The schedule for these sizes and costs. Raises as `sizes` does, and `make`."""
        sizes = self.sizes(num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, options=options)
        return self.make(sizes, costs)

    def make(self, sizes: Sizes, costs: ScheduleCosts | None = None) -> Schedule:
        """The schedule for sizes that came from `sizes`. Without costs: one tick a kind, free links, no further cap.

        Raises:
            ScheduleError: costs of another number of stages than the schedule has, or a cap that nothing fits under.
        """
        placement = self.place(sizes)
        held = ScheduleCosts.of(placement) if costs is None else costs
        if len(held.stages) != placement.num_stages:
            raise ScheduleError(
                f"{self.name} has {placement.num_stages} stages and needs one cost for each (given {len(held.stages)})"
            )
        return self.construct(sizes, held)

    def _options(self, given: Mapping[str, int]) -> dict[str, int]:
        known = {option.name: option for option in self.options}
        for name, value in given.items():
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(known) or 'none'}"
                raise ScheduleError(f"{self.name} has no option {shown(repr(name))}; {hint}")
            if isinstance(value, bool) or not isinstance(value, int) or value < known[name].least:
                raise ScheduleError(
                    f"option {name} of {self.name} is a whole number of at least {known[name].least} (given {value!r})"
                )
        return {option.name: given.get(option.name, option.default) for option in self.options}
