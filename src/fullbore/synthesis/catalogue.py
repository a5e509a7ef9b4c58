"""Every schedule by name: the registered ones, and `auto`, which is made from them and so lives above them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fullbore.errors import ScheduleError
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.registry import REGISTRY, named
from fullbore.synthesis.auto import ENTRY

__all__ = ["CATALOGUE", "get", "get_runnable"]

CATALOGUE: Mapping[str, ScheduleEntry] = MappingProxyType({**REGISTRY, ENTRY.name: ENTRY})
"""In the order of the command line's list."""


def get(name: str) -> ScheduleEntry:
    """The entry of that name. Raises `ScheduleError` with the nearest name and the known ones."""
    return named(name, CATALOGUE)


def get_runnable(name: str) -> ScheduleEntry:
    """The same, of one that can be run. Raises `ScheduleError`, also for one that is drawn and simulated only."""
    entry = get(name)
    if not entry.runnable:
        known = ", ".join(name for name, one in CATALOGUE.items() if one.runnable)
        raise ScheduleError(f"{entry.name} is drawn and simulated, and cannot be run; use one of: {known}")
    return entry
