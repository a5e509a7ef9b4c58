"""TraceWriter: the `Instrument` that keeps a run. One file per rank, flushed once per step.

Opening can fail, loudly. Afterwards tracing never ends a training run: if the disk fills up, the writer stops and
keeps the reason in `problem`, for the end of the run to report.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from fullbore.errors import TraceError
from fullbore.ir.placement import Placement
from fullbore.timeline.clock import ClockOffset
from fullbore.timeline.span import Span
from fullbore.trace.format import VERSION, clock_document, trace_path

__all__ = ["TraceWriter"]


class TraceWriter:
    """Writes the spans of one rank. A context manager; `close` may be called twice.

    Args:
        run_dir: the run folder; ``trace/`` is made in it.
        clock: this rank's calibration against rank 0; None where none was made (readers will refuse the rank,
            except rank 0 or a run of one rank).

    Raises:
        TraceError: the folder or file cannot be written.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        rank: int,
        placement: Placement,
        schedule: str,
        clock: ClockOffset | None,
    ) -> None:
        self.problem: str | None = None
        self.path = trace_path(run_dir, rank=rank)
        self._open_spans: list[list[Any]] = []
        header = {
            "fullbore_trace": VERSION,
            "rank": rank,
            "num_ranks": placement.num_ranks,
            "placement": list(placement.ranks),
            **({} if placement.num_streams == 1 else {"streams": placement.num_streams}),
            "schedule": schedule,
            "clock": clock_document(clock) if clock else None,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = _ends_inside_a_line(self.path)
            self._file: TextIO | None = self.path.open("a", encoding="utf-8", newline="\n")
            try:
                self._file.write(("\n" if unfinished else "") + _line(header))
                self._file.flush()
            except OSError:
                with suppress(OSError):
                    self._file.close()
                raise
        except OSError as error:
            raise TraceError(
                f"a trace needs a writable run folder: cannot write {self.path} ({error.strerror or error}); "
                "choose another run folder or free some space"
            ) from error

    def record(self, span: Span) -> None:
        action = str(span.action) if span.action is not None else None
        activity = span.activity.value if span.activity is not None else None
        self._open_spans.append([span.row.value, action, activity, span.start_ns, span.end_ns])

    def step_ended(self, step: int) -> None:
        self._append({"step": step, "spans": self._open_spans})
        self._open_spans = []

    def measured_again(self, clock: ClockOffset) -> None:
        """Keep a second calibration, made at the end: readers interpolate the drift between the two."""
        self._append({"clock_end": clock_document(clock)})

    def close(self) -> None:
        """Spans after the last `step_ended` belong to no finished step and are dropped."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.problem = self.problem or _why(self.path, error)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, document: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_line(document))
            self._file.flush()
        except OSError as error:
            self.problem = _why(self.path, error)
            self.close()


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


def _why(path: Path, error: OSError) -> str:
    return f"the trace stops early: cannot write {path} ({error.strerror or error})"


def _ends_inside_a_line(path: Path) -> bool:
    """Did an earlier process die while it wrote?"""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
