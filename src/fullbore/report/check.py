"""One schedule file, checked: the text and the JSON document behind `fullbore schedule check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from fullbore.ir.blocking import BlockingRule, blocking_problems
from fullbore.ir.explicit import ExplicitSchedule, explicit_of
from fullbore.ir.explicit_spec import ExplicitRule, explicit_problems
from fullbore.ir.lower import lower
from fullbore.ir.problem import Problem, marked_grid
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import ScheduleFile
from fullbore.ir.validate import Rule, problems

__all__ = ["CheckReport", "check_report"]

_MOST_OF_A_RULE = 5
_REASONS: Mapping[str, str] = MappingProxyType(
    {str(rule): rule.reason for rules in (Rule, ExplicitRule, BlockingRule) for rule in rules}
)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything that is said about one file."""

    where: str
    file: ScheduleFile
    checked: Schedule | ExplicitSchedule
    """What positions count in: the file's own rows, or for wait cycles those rows with sends and receives added."""

    blocking: bool
    problems: tuple[Problem, ...]

    @property
    def valid(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, Any]:
        """The JSON answer."""
        schedule = self.file.schedule
        return {
            "valid": self.valid,
            "problems": [
                {
                    "rule": str(problem.rule),
                    "rank": problem.rank,
                    "position": problem.position,
                    "action": None if problem.action is None else str(problem.action),
                    "message": problem.message,
                    "column": self._column(problem),
                }
                for problem in self.problems
            ],
            "form": self.file.form,
            "ranks": schedule.num_ranks,
            "stages": schedule.num_stages,
            "microbatches": schedule.num_microbatches,
            "notes": list(self.file.notes),
        }

    def text(self) -> str:
        """A verdict; for each rule that is broken its reason, its problems and the grid of the first."""
        schedule, found = self.file.schedule, len(self.problems)
        verdict = f"{found} problem{'' if found == 1 else 's'}" if found else "valid"
        if self.valid and self.blocking:
            verdict += ", and free of wait cycles where sends block"
        sizes = f"ranks {schedule.num_ranks}, stages {schedule.num_stages}, microbatches {schedule.num_microbatches}"
        lines = [f"{self.where}: {verdict}", f"{self.file.form}; {sizes}", *(f"note: {n}" for n in self.file.notes)]
        for rule, group in groupby(self.problems, key=lambda problem: str(problem.rule)):
            broken = list(group)
            lines += ["", f"{rule}: {_REASONS[rule]}"]
            lines += [f"  {problem.message}{self._in_file(problem)}" for problem in broken[:_MOST_OF_A_RULE]]
            lines += [f"  and {len(broken) - _MOST_OF_A_RULE} more"] if len(broken) > _MOST_OF_A_RULE else []
            lines.append(marked_grid(self.checked, broken[0]).rstrip("\n"))
        return "\n".join(lines) + "\n"

    def _column(self, problem: Problem) -> int | None:
        columns = self.file.columns
        if columns is None or problem.rank is None or problem.position is None or self.checked != self.file.schedule:
            return None
        return columns[problem.rank][problem.position]

    def _in_file(self, problem: Problem) -> str:
        column = self._column(problem)
        return "" if column is None or problem.rank is None else f" (row {problem.rank + 1}, column {column})"


def check_report(
    file: ScheduleFile, *, where: str, blocking: bool, most_in_flight: Sequence[int] | None = None
) -> CheckReport:
    """Check every rule; with ``blocking`` wait cycles too, once the others hold.

    A schedule without communication is checked for cycles as `fullbore.ir.lower` places its sends and receives.
    """
    checked = file.schedule
    if isinstance(checked, Schedule):
        found = problems(checked, most_in_flight=most_in_flight)
    else:
        found = explicit_problems(checked, most_in_flight=most_in_flight)
    if blocking and not found:
        if isinstance(checked, Schedule):
            checked = explicit_of(lower(checked), name=checked.name)
        found = blocking_problems(checked)
        if not found:
            checked = file.schedule
    return CheckReport(where, file, checked, blocking, found)
