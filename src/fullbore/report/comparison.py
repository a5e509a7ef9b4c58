"""Schedules side by side, for the same sizes and costs: behind `fullbore schedule compare`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fullbore.errors import CostsError, ScheduleError
from fullbore.plan.made import make_for, unit_timing
from fullbore.report.schedule import ScheduleReport, above_cap, schedule_report
from fullbore.schedules.entry import ScheduleEntry
from fullbore.synthesis.auto import variants

__all__ = ["Comparison", "LeftOut", "compare_schedules", "require_comparable"]

_MOST_FORWARDS = 30_000
"""Of one schedule: beyond it a comparison takes many minutes, nearly all of them for what is made for costs."""

_QUICK_FORWARDS = 1_000
"""Up to it an answer is there in seconds, and nobody wants to hear what it is at."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A schedule that is not compared, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The schedules that fit, fastest first, and those that do not."""

    rows: tuple[ScheduleReport, ...]
    left_out: tuple[LeftOut, ...]

    def document(self) -> dict[str, Any]:
        """The JSON answer: each row as `schedule show` has it, without its orders."""
        rows = [{key: value for key, value in row.document().items() if key != "orders"} for row in self.rows]
        return {"rows": rows, "left_out": [{"name": one.name, "reason": one.reason} for one in self.left_out]}

    def text(self) -> str:
        """A table, below it how good the fastest is, and what does not fit."""
        head = ("schedule", "chunks", "makespan", "bubble", "overhead", "peak", "bound")
        table = [head, *map(_cells, self.rows)]
        widths = [max(len(row[column]) for row in table) for column in range(len(head))]
        lines = [
            "  ".join(
                [f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))]
            ).rstrip()
            for row in table
        ]
        lines += [
            "",
            "bubble: share of wall time; overhead: on top of the busiest rank's work;",
            "peak: most microbatch-shares a rank keeps; bound: no order of this schedule's work is faster",
            "",
            f"{self.rows[0].schedule.name}: {self.rows[0].certificate}",
        ]
        if self.left_out:
            lines += ["", "left out:", *(f"  {one.name}: {one.reason}" for one in self.left_out)]
        return "\n".join(lines) + "\n"


def require_comparable(num_ranks: int, *, num_microbatches: int, num_chunks: int | None) -> None:
    """Raises `ScheduleError` for sizes at which all schedules together would take too long."""
    forwards = num_ranks * num_microbatches * (num_chunks or 1)
    if forwards > _MOST_FORWARDS:
        raise ScheduleError(
            f"schedules are compared at up to {_MOST_FORWARDS:,} forwards ({num_ranks} ranks, {num_microbatches} "
            f"microbatches and {num_chunks or 1} chunks have {forwards:,}); use fewer microbatches, or look at one "
            "schedule with `fullbore schedule show`"
        )


def compare_schedules(
    entries: Iterable[ScheduleEntry],
    *,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None,
    cost: str,
    comm: str,
    memory_cap: Fraction | None,
    input_backward_frees: Fraction = Fraction(0),
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Every entry at these sizes, or the reason why not. Equal makespans: auto first, then less memory, then by name.

    Args:
        num_chunks: None: each schedule's own.
        cost, comm: as in `fullbore.costs.unit`; a list in ``comm`` fits schedules with that many boundaries only.
        memory_cap: most microbatch-shares a rank may keep. What is made for costs is made for it.
        tell: hears what is being done, a line a schedule, where it takes more than seconds.

    Raises:
        ScheduleError: as `require_comparable`.
    """
    require_comparable(num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    takes_long = num_ranks * num_microbatches * (num_chunks or 1) > _QUICK_FORWARDS
    rows: list[ScheduleReport] = []
    left_out: list[LeftOut] = []
    for entry in entries:
        if takes_long:
            tell(f"making {entry.name}")
        try:
            made = make_for(
                entry,
                variants(entry, num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks),
                timing=unit_timing(cost=cost, comm=comm),
                memory_cap=memory_cap,
                input_backward_frees=input_backward_frees,
            )
        except (ScheduleError, CostsError) as error:
            left_out.append(LeftOut(entry.name, str(error)))
            continue
        times = made.timing
        report = schedule_report(
            made.schedule,
            costs=times.stages,
            links=times.links,
            memory_cap=memory_cap,
            input_backward_frees=input_backward_frees,
            scale=times.scale,
        )
        above = above_cap(report.peak_shares, memory_cap)
        if above is None:
            rows.append(report)
        else:
            left_out.append(LeftOut(entry.name, above))
    rows.sort(key=lambda row: (_makespan(row), row.schedule.name != "auto", max(row.peak_shares), row.schedule.name))
    return Comparison(tuple(rows), tuple(left_out))


def _makespan(row: ScheduleReport) -> Fraction:
    """In the caller's unit: schedules with other chunks count in other ticks."""
    return Fraction(row.bubble.makespan_ns, row.scale.per_unit)


def _cells(row: ScheduleReport) -> tuple[str, ...]:
    bubble, scale = row.bubble, row.scale
    return (
        row.schedule.name,
        str(row.num_chunks),
        scale.format(bubble.makespan_ns),
        f"{bubble.bubble_fraction:.1%}",
        f"{bubble.bubble_overhead:.1%}",
        f"{float(max(row.peak_shares)):g}",
        scale.format(row.lower_bound.makespan),
    )
