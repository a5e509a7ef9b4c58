"""Problem: one violated rule and its place, and the grid of a schedule with that cell marked.

    rank 0    0F0   0F1   0B0   0B1
    rank 1    1F0   1B0  [1F0]  1F1   1B1    <-- rank 1, position 2: 1F0 on rank 1 is there twice

A grid wider than the page shows the columns around the cell, a grid of many ranks the ranks around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fullbore.errors import InvalidSchedule
from fullbore.ids import Rank
from fullbore.ir.explicit import Cell, ExplicitSchedule
from fullbore.ir.schedule import Schedule

__all__ = ["Problem", "marked_grid", "raise_problems"]

_PAGE_COLUMNS = 100
_PAGE_RANKS = 16
_SHOWN = 5
_MOST_BEHIND_A_ROW = 80
"""A longer message stands above the grid, and its rule behind the row."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule and its place; the place is None where the fault is that something is missing."""

    rule: str
    rank: Rank | None
    position: int | None
    """Index in the rank's order."""

    action: Cell | None
    message: str

    @property
    def place(self) -> str:
        """``rank 2, position 5``, as far as there is one."""
        if self.rank is None:
            return "no rank"
        return f"rank {self.rank}" if self.position is None else f"rank {self.rank}, position {self.position}"


def raise_problems(found: Sequence[Problem], *, schedule: Schedule | ExplicitSchedule) -> None:
    """Raise `InvalidSchedule` with the first few problems, and the grid with the first of their cells marked."""
    if not found:
        return
    shown = [f"  {problem.rule}: {problem.message}" for problem in found[:_SHOWN]]
    more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    marked = next((problem for problem in found if problem.position is not None), found[0])
    raise InvalidSchedule(
        "\n".join(
            [
                f"schedule {schedule.name!r} breaks {len(found)} rule(s):",
                *shown,
                *more,
                marked_grid(schedule, marked).rstrip("\n"),
            ]
        ),
        rules=tuple(dict.fromkeys(str(problem.rule) for problem in found)),
    )


def marked_grid(schedule: Schedule | ExplicitSchedule, problem: Problem) -> str:
    """The rows of the schedule, the problem's cell in brackets, its message (or rule) behind the row. Ends a line."""
    rows: Sequence[Sequence[Cell]] = schedule.orders
    ranks = _window(len(rows), around=problem.rank or 0, size=_PAGE_RANKS)
    columns = max((len(rows[rank]) for rank in ranks), default=0)
    width = max((len(str(cell)) for rank in ranks for cell in rows[rank]), default=0) + 2
    head = len(f"rank {max(len(rows) - 1, 0)}") + 2
    shown = _window(columns, around=problem.position or 0, size=max((_PAGE_COLUMNS - head - 8) // (width + 1), 1))
    lines = [f"{' ' * head}(from position {shown.start} of {columns})"] if len(shown) < columns else []
    lines += [f"(ranks {ranks.start} to {ranks.stop - 1} of {len(rows)})"] if len(ranks) < len(rows) else []
    short = problem.message if len(problem.message) <= _MOST_BEHIND_A_ROW else str(problem.rule)
    for rank in ranks:
        cells = []
        for position in range(shown.start, min(shown.stop, len(rows[rank]))):
            here = rank == problem.rank and position == problem.position
            text = str(rows[rank][position])
            cells.append(f"{f'[{text}]' if here else f' {text} ':<{width}}")
        before, after = ("... " if shown.start else ""), (" ..." if shown.stop < len(rows[rank]) else "")
        line = f"{f'rank {rank}':<{head}}{before}{' '.join(cells)}{after}".rstrip()
        lines.append(f"{line}   <-- {problem.place}: {short}" if rank == problem.rank else line)
    if problem.rank is None or problem.rank not in ranks:
        lines.append(problem.message)
    return "\n".join(lines) + "\n"


def _window(length: int, *, around: int, size: int) -> range:
    """At most ``size`` of ``length`` places, ``around`` among them and in the middle where it can be."""
    start = max(0, min(around - size // 2, length - size))
    return range(start, min(start + size, length))
