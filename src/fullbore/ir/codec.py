"""Fullbore text: a schedule as a small file that people read, diffs show and tools exchange.

    fullbore schedule 1
    name 1f1b
    placement 0 1
    microbatches 2
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1

``placement`` lists the rank of every stage. Strict: one spelling for one schedule, so ``parse(format(s)) == s`` and
``format(parse(t)) == t``. Parsing does not check the rules of a schedule; `fullbore.ir.validate` does.
"""

from __future__ import annotations

import re

from fullbore.errors import ScheduleError
from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule

__all__ = ["format_schedule", "parse_schedule"]

_FIRST_LINE = "fullbore schedule 1"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_NAME = re.compile(r"\S+(?: \S+)*")


def format_schedule(schedule: Schedule) -> str:
    """The text of a schedule, ending in a newline."""
    if not _NAME.fullmatch(schedule.name):
        raise ScheduleError(f"a name is words with single spaces between them, on one line (given {schedule.name!r})")
    lines = [
        _FIRST_LINE,
        f"name {schedule.name}",
        f"placement {' '.join(map(str, schedule.placement.ranks))}",
        f"microbatches {schedule.num_microbatches}",
    ]
    for rank, order in enumerate(schedule.orders):
        lines.append(" ".join([f"rank {rank}:", *map(str, order)]))
    return "\n".join(lines) + "\n"


def parse_schedule(text: str) -> Schedule:
    """The inverse of `format_schedule`. Raises `ScheduleError` with the line and what it should be."""
    lines = text.split("\n")
    if lines[0] != _FIRST_LINE:
        raise ScheduleError(f"line 1 of a fullbore schedule is {_FIRST_LINE!r} (given {lines[0][:60]!r})")
    if lines[-1] != "":
        raise ScheduleError(f"a fullbore schedule ends with a newline (line {len(lines)} does not)")
    lines.pop()
    name = _field(lines, index=1, key="name")
    if not _NAME.fullmatch(name):
        raise ScheduleError(f"line 2: a name is words with single spaces between them (given {name!r})")
    ranks = tuple(Rank(_number(word, line=3)) for word in _field(lines, index=2, key="placement").split(" "))
    placement = Placement(ranks)
    num_microbatches = _number(_field(lines, index=3, key="microbatches"), line=4)
    orders = tuple(_order(line, rank=rank, line_number=rank + 5) for rank, line in enumerate(lines[4:]))
    if len(orders) != placement.num_ranks:
        raise ScheduleError(f"the placement on line 3 has {placement.num_ranks} ranks, the text {len(orders)} orders")
    return Schedule(name, placement, num_microbatches, orders)


def _field(lines: list[str], *, index: int, key: str) -> str:
    line = lines[index] if index < len(lines) else ""
    if not line.startswith(f"{key} "):
        raise ScheduleError(f"line {index + 1} starts with '{key} ' (given {line[:60]!r})")
    return line[len(key) + 1 :]


def _number(word: str, *, line: int) -> int:
    if not _NUMBER.fullmatch(word):
        raise ScheduleError(f"line {line}: a number is digits only, without leading zeros (given {word[:20]!r})")
    return int(word)


def _order(line: str, *, rank: int, line_number: int) -> tuple[Compute, ...]:
    start = f"rank {rank}:"
    if not line.startswith(start):
        raise ScheduleError(f"line {line_number} starts with {start!r} (given {line[:60]!r})")
    rest = line[len(start) :]
    if not rest:
        return ()
    if not rest.startswith(" "):
        raise ScheduleError(f"line {line_number}: actions are separated by single spaces (given {line[:60]!r})")
    actions = []
    for position, word in enumerate(rest[1:].split(" ")):
        try:
            actions.append(Compute.parse(word))
        except ScheduleError as error:
            raise ScheduleError(f"line {line_number}, action {position}: {error}") from error
    return tuple(actions)
