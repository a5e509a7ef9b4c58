"""ScheduleEntry: what a published schedule tells about itself, so that one registry line is enough to add it.

The formulas hold for equal stages, free links and any costs with F + B = T; property tests compare every registered
schedule with them over random sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fullbore.ir.schedule import Schedule

__all__ = ["Build", "MakespanFormula", "PeakFormula", "ScheduleEntry"]


class Build(Protocol):
    """The schedule as a pure function of sizes."""

    def __call__(self, num_ranks: int, *, num_microbatches: int) -> Schedule: ...


class PeakFormula(Protocol):
    """Most activations alive at once on a rank, one for each (stage, microbatch): v of them are one whole share."""

    def __call__(self, num_ranks: int, *, num_microbatches: int, rank: int) -> int: ...


class MakespanFormula(Protocol):
    """Time from first start to last end, where one microbatch takes ``slot`` (F + B) on every rank."""

    def __call__(self, num_ranks: int, *, num_microbatches: int, slot: int) -> int: ...


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

    build: Build
    chunks: int
    """Its own number of stages per rank, used unless the caller gives one."""

    splits_backward: bool
    """Does it run I and W in place of B?"""

    peak_activations: PeakFormula
    makespan: MakespanFormula
