"""Schedule files: fullbore text or PyTorch's CSV, told apart by their first words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fullbore.bounded_file import read_bounded
from fullbore.errors import ScheduleError
from fullbore.ir.codec import format_schedule, parse_schedule
from fullbore.ir.explicit import ExplicitSchedule
from fullbore.ir.schedule import Schedule
from fullbore.ir.torch_csv import parse_torch_csv
from fullbore.written_file import write_whole

__all__ = [
    "ScheduleFile",
    "open_schedule_file",
    "parse_schedule_file",
    "read_computed",
    "read_schedule_file",
    "write_schedule_file",
]


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """A schedule and how its file said it."""

    schedule: Schedule | ExplicitSchedule
    form: str
    """In words, as ``PyTorch CSV with communication``."""

    columns: tuple[tuple[int, ...], ...] | None
    """In a CSV, for each rank the column of each cell, counted from 1."""

    notes: tuple[str, ...]
    """What the reader dropped, and why that is right."""


def read_schedule_file(path: Path) -> Schedule | ExplicitSchedule:
    """The schedule of a file, in whatever form. Its rules are not checked. Raises as `open_schedule_file` does."""
    return open_schedule_file(path).schedule


def read_computed(path: Path) -> Schedule:
    """The computing part of a file's schedule; where messages go, lowering decides. Raises as `open_schedule_file`."""
    found = read_schedule_file(path)
    return found.compute_part() if isinstance(found, ExplicitSchedule) else found


def write_schedule_file(path: Path, schedule: Schedule) -> None:
    """Write fullbore text. Raises `ScheduleError` where the file cannot be written."""
    try:
        write_whole(path, [format_schedule(schedule)])
    except OSError as error:
        raise ScheduleError(f"cannot write the schedule {path}: {error.strerror}") from error


def open_schedule_file(path: Path) -> ScheduleFile:
    """The schedule with its form and notes.

    Raises:
        ScheduleError: it cannot be read, or is in neither form; names the line, or the row and column.
    """
    try:
        text = read_bounded(path).decode("utf-8-sig")
    except OSError as error:
        raise ScheduleError(f"cannot read the schedule {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScheduleError(f"the schedule {path} is not text: {error.reason} at byte {error.start}") from error
    return parse_schedule_file(text, name=_name(path), where=str(path))


def _name(path: Path) -> str:
    """For a form that has none: the file's, as far as it can be printed."""
    printable = "".join(letter for letter in path.stem if letter.isprintable())
    return " ".join(printable.split()) or "schedule"


def parse_schedule_file(text: str, *, name: str, where: str) -> ScheduleFile:
    """As `open_schedule_file`, of its text. ``name`` is for forms that have none."""
    if text.startswith("fullbore"):
        try:
            return ScheduleFile(parse_schedule(text), "fullbore text", None, ())
        except ScheduleError as error:
            raise ScheduleError(f"{where}: {error}") from error
    found = parse_torch_csv(text, name=name, where=where)
    with_communication = isinstance(found.schedule, ExplicitSchedule)
    form = f"PyTorch CSV {'with communication' if with_communication else 'of computation only'}"
    return ScheduleFile(found.schedule, form, found.columns, found.notes)
