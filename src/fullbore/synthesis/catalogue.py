"""Every schedule by name: the registered ones, and `auto`, which is made from them and so lives above them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.registry import REGISTRY, named
from fullbore.synthesis.auto import ENTRY

__all__ = ["CATALOGUE", "get"]

CATALOGUE: Mapping[str, ScheduleEntry] = MappingProxyType({**REGISTRY, ENTRY.name: ENTRY})
"""In the order of the command line's list."""


def get(name: str) -> ScheduleEntry:
    """The entry of that name. Raises `ScheduleError` with the nearest name and the known ones."""
    return named(name, CATALOGUE)
