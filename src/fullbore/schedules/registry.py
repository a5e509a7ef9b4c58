"""The registered schedules, by the name the command line uses. To add one: its file, its line here, new goldens."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fullbore.errors import ScheduleError
from fullbore.nearest import nearest
from fullbore.schedules import (
    chimera,
    dual_pipe,
    dual_pipe_v,
    eager_one_forward_one_backward,
    gpipe,
    hanayo,
    interleaved_one_forward_one_backward,
    looped_bfs,
    one_forward_one_backward,
    one_forward_one_backward_v,
    seq_one_forward_one_backward,
    v_half,
    v_min,
    zero_bubble_1p,
    zero_bubble_2p,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from fullbore.schedules.entry import ScheduleEntry
from fullbore.shown import shown

__all__ = ["REGISTRY", "get", "named"]

_ENTRIES = (
    gpipe.ENTRY,
    one_forward_one_backward.ENTRY,
    eager_one_forward_one_backward.ENTRY,
    interleaved_one_forward_one_backward.ENTRY,
    looped_bfs.ENTRY,
    zero_bubble_h1.ENTRY,
    zero_bubble_h2.ENTRY,
    zero_bubble_1p.ENTRY,
    zero_bubble_2p.ENTRY,
    zero_bubble_v.ENTRY,
    v_half.ENTRY,
    v_min.ENTRY,
    one_forward_one_backward_v.ENTRY,
    dual_pipe_v.ENTRY,
    dual_pipe.ENTRY,
    chimera.ENTRY,
    hanayo.ENTRY,
    seq_one_forward_one_backward.ENTRY,
)

REGISTRY: Mapping[str, ScheduleEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""In the order of the command line's list."""


def get(name: str) -> ScheduleEntry:
    """The entry of that name. Raises `ScheduleError` with the nearest name and the known ones."""
    return named(name, REGISTRY)


def named(name: str, entries: Mapping[str, ScheduleEntry]) -> ScheduleEntry:
    """The same among other entries than the registered ones."""
    if name in entries:
        return entries[name]
    known = ", ".join(entries)
    near = nearest(name, entries)
    hint = f"did you mean {near!r}? " if near else ""
    raise ScheduleError(f"there is no schedule {shown(repr(name))}; {hint}known: {known}")
