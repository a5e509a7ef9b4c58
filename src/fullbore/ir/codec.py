"""Fullbore text: a schedule as a small file that people read, diffs show and tools exchange.

    fullbore schedule 1
    name 1f1b
    placement 0 1
    microbatches 2
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1

``placement`` lists the rank of every stage. Lines that most schedules lack follow what they belong to: ``streams 2``
below a placement in both directions, ``slices 4`` below the microbatches where sequences are cut (actions are then
written ``0F1.3``). ``0F3&3B1`` are two actions that may run at once. Strict: one spelling for one schedule, so
``parse(format(s)) == s`` and ``format(parse(t)) == t``. Parsing does not check the rules of a schedule;
`fullbore.ir.validate` does.
"""

from __future__ import annotations

import re

from fullbore.errors import ScheduleError
from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Overlap, Schedule
from fullbore.shown import shown

__all__ = ["format_schedule", "parse_schedule"]

_FIRST_LINE = "fullbore schedule 1"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_NAME = re.compile(r"\S+(?: \S+)*")


def _is_name(text: str) -> bool:
    """A terminal and a picture show it as it is."""
    return _NAME.fullmatch(text) is not None and text.isprintable()


def format_schedule(schedule: Schedule) -> str:
    """The text of a schedule, ending in a newline."""
    if not _is_name(schedule.name):
        raise ScheduleError(
            f"a name is printable words with single spaces between them (given {shown(repr(schedule.name))})"
        )
    lines = [
        _FIRST_LINE,
        f"name {schedule.name}",
        f"placement {' '.join(map(str, schedule.placement.ranks))}",
    ]
    if schedule.placement.num_streams != 1:
        lines.append(f"streams {schedule.placement.num_streams}")
    lines.append(f"microbatches {schedule.num_microbatches}")
    if schedule.num_slices != 1:
        lines.append(f"slices {schedule.num_slices}")
    joined = {pair.forward for pair in schedule.overlaps}
    for rank, order in enumerate(schedule.orders):
        words = "".join(f"{action}{'&' if action in joined else ' '}" for action in order)
        lines.append(f"rank {rank}: {words}".rstrip(" &"))
    return "\n".join(lines) + "\n"


def parse_schedule(text: str) -> Schedule:
    """The inverse of `format_schedule`. Raises `ScheduleError` with the line and what it should be."""
    lines = text.split("\n")
    if lines[0] != _FIRST_LINE:
        raise ScheduleError(f"line 1 of a fullbore schedule is {_FIRST_LINE!r} (given {shown(repr(lines[0]))})")
    if lines[-1] != "":
        raise ScheduleError(f"a fullbore schedule ends with a newline (line {len(lines)} does not)")
    lines.pop()
    name = _field(lines, index=1, key="name")
    if not _is_name(name):
        raise ScheduleError(
            f"line 2: a name is printable words with single spaces between them (given {shown(repr(name))})"
        )
    ranks = tuple(Rank(_number(word, line=3)) for word in _field(lines, index=2, key="placement").split(" "))
    at = 3
    num_streams = _more_than_one(lines, index=at, key="streams")
    at += num_streams > 1
    placement = Placement(ranks, num_streams)
    num_microbatches = _number(_field(lines, index=at, key="microbatches"), line=at + 1)
    at += 1
    num_slices = _more_than_one(lines, index=at, key="slices")
    at += num_slices > 1
    overlaps: set[Overlap] = set()
    orders = tuple(_order(line, overlaps, rank=rank, line_number=at + rank + 1) for rank, line in enumerate(lines[at:]))
    if len(orders) != placement.num_ranks:
        raise ScheduleError(f"the placement on line 3 has {placement.num_ranks} ranks, the text {len(orders)} orders")
    return Schedule(name, placement, num_microbatches, orders, num_slices, frozenset(overlaps))


def _field(lines: list[str], *, index: int, key: str) -> str:
    line = lines[index] if index < len(lines) else ""
    if not line.startswith(f"{key} "):
        raise ScheduleError(f"line {index + 1} starts with '{key} ' (given {shown(repr(line))})")
    return line[len(key) + 1 :]


def _more_than_one(lines: list[str], *, index: int, key: str) -> int:
    """The number of a line that stands only where it is above 1; 1 where the line is not there."""
    if index >= len(lines) or not lines[index].startswith(f"{key} "):
        return 1
    number = _number(lines[index][len(key) + 1 :], line=index + 1)
    if number < 2:
        raise ScheduleError(f"line {index + 1}: {key} are written where there are at least 2 (given {number})")
    return number


def _number(word: str, *, line: int) -> int:
    if not _NUMBER.fullmatch(word):
        raise ScheduleError(f"line {line}: a number is digits only, without leading zeros (given {shown(repr(word))})")
    return int(word)


def _order(line: str, overlaps: set[Overlap], *, rank: int, line_number: int) -> tuple[Compute, ...]:
    """The actions of a line; pairs that may run at once go into ``overlaps`` too."""
    start = f"rank {rank}:"
    if not line.startswith(start):
        raise ScheduleError(f"line {line_number} starts with {start!r} (given {shown(repr(line))})")
    rest = line[len(start) :]
    if not rest:
        return ()
    if not rest.startswith(" "):
        raise ScheduleError(f"line {line_number}: actions are separated by single spaces (given {shown(repr(line))})")
    actions: list[Compute] = []
    for word in rest[1:].split(" "):
        first = len(actions)
        for part in word.split("&"):
            try:
                actions.append(Compute.parse(part))
            except ScheduleError as error:
                raise ScheduleError(f"line {line_number}, action {len(actions)}: {error}") from error
        if len(actions) - first > 2:
            raise ScheduleError(
                f"line {line_number}, action {first}: two actions may run at once (given {shown(repr(word))})"
            )
        if len(actions) - first == 2:
            overlaps.add(Overlap(*actions[first:]))
    return tuple(actions)
