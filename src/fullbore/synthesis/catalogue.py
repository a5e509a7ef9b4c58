"""Every schedule by name: the registered ones, and `auto`, which is made from them and so lives above them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fullbore.errors import ScheduleError
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.registry import REGISTRY, named
from fullbore.synthesis.auto import ENTRY

__all__ = ["CATALOGUE", "get", "require_can_run"]

CATALOGUE: Mapping[str, ScheduleEntry] = MappingProxyType({**REGISTRY, ENTRY.name: ENTRY})
"""In the order of the command line's list."""


def get(name: str) -> ScheduleEntry:
    """The entry of that name. Raises `ScheduleError` with the nearest name and the known ones."""
    return named(name, CATALOGUE)


def require_can_run(entry: ScheduleEntry) -> None:
    """Raises `ScheduleError` for one that is drawn and simulated only, with those that run."""
    if not entry.runnable:
        known = ", ".join(name for name, one in CATALOGUE.items() if one.runnable)
        raise ScheduleError(f"{entry.name} is drawn and simulated, and cannot be run; use one of: {known}")
