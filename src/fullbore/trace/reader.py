"""Reading a run's trace back: the files of all ranks as one Timeline per step, on rank 0's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fullbore.bounded_file import read_bounded
from fullbore.errors import FullboreError, ScheduleError, TraceError
from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.placement import Placement
from fullbore.json_file import parse_json
from fullbore.timeline.clock import ClockOffset
from fullbore.timeline.span import Activity, Row, Span, Timeline
from fullbore.trace.clock import Alignment
from fullbore.trace.format import VERSION, trace_path

__all__ = ["Trace", "median_step", "read_trace", "warm_steps"]

_MOST_BYTES = 4 << 30
"""Of one rank: a day of steps of a second, hundreds of spans each. What is longer does not fit into memory as spans."""


@dataclass(slots=True)
class _Segment:
    """What one process wrote: from its header to the next one."""

    header: dict[str, Any]
    where: str
    steps: dict[int, list[list[Any]]] = field(default_factory=dict)
    clock_end: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One rank's spans of one step, not yet aligned."""

    segment: int
    rows: list[list[Any]]
    alignment: Alignment


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps that every rank finished."""

    run_dir: Path
    placement: Placement
    schedule: str
    clock_uncertainty_ns: int
    """The worst of all ranks: differences between ranks below this mean nothing."""

    steps: tuple[int, ...]
    """Ascending, not always without gaps."""

    recorded: tuple[dict[int, _Recorded], ...] = field(repr=False)

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    def timeline(self, step: int) -> Timeline:
        """One step in absolute nanoseconds of rank 0's clock (`fullbore.timeline.shift.from_zero` moves it to 0)."""
        if step not in self.steps:
            have = f"{self.steps[0]} to {self.steps[-1]}" if self.steps else "none"
            raise TraceError(f"the trace in {self.run_dir} has no step {step} that all ranks finished (it has {have})")
        spans = (span for rank, steps in enumerate(self.recorded) for span in _spans(steps[step], Rank(rank)))
        return Timeline.of(spans, num_ranks=self.num_ranks)


def read_trace(run_dir: Path) -> Trace:
    """Open the trace of a run folder. The last line of a crashed run may be cut off.

    Raises:
        TraceError: no trace, a rank missing or without calibration, another version, or a broken line.
    """
    try:
        return _read(run_dir)
    except FullboreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TraceError(
            f"the trace in {run_dir} is not as fullbore writes it ({type(error).__name__}: {error}); run again"
        ) from error


def _read(run_dir: Path) -> Trace:
    first = _read_rank(run_dir, 0)
    placement = Placement(tuple(map(Rank, first[-1].header["placement"])), first[-1].header.get("streams", 1))
    recorded: list[dict[int, _Recorded]] = []
    uncertainty = 0
    for rank in range(placement.num_ranks):
        segments = first if rank == 0 else _read_rank(run_dir, rank)
        if segments[-1].header["placement"] != first[-1].header["placement"]:
            raise TraceError(f"all ranks of a trace share one placement (rank {rank} in {run_dir} has another one)")
        kept: dict[int, _Recorded] = {}
        for number, segment in enumerate(segments):
            if not segment.steps:
                continue
            alignment = _alignment(segment, rank=rank, num_ranks=placement.num_ranks)
            uncertainty = max(uncertainty, alignment.uncertainty_ns)
            kept.update({step: _Recorded(number, rows, alignment) for step, rows in segment.steps.items()})
        recorded.append(kept)
    return Trace(
        run_dir=run_dir,
        placement=placement,
        schedule=first[-1].header["schedule"],
        clock_uncertainty_ns=uncertainty,
        steps=_finished_by_all(recorded),
        recorded=tuple(recorded),
    )


def warm_steps(trace: Trace, *, last: int) -> tuple[int, ...]:
    """The last so many steps, without the first of all, which also warms up; that one where there is no other.

    Raises:
        TraceError: the trace has no finished step.
    """
    if not trace.steps:
        raise TraceError(f"the trace in {trace.run_dir} has no step that all ranks finished")
    return (trace.steps[1:] or trace.steps)[-last:]


def median_step(trace: Trace, *, among: Sequence[int]) -> int:
    """Of these steps, one at least, that with the median makespan (the lower one of two)."""
    timed = []
    for step in among:
        timeline = trace.timeline(step)
        timed.append((timeline.compute_end_ns - timeline.compute_start_ns, step))
    return sorted(timed)[(len(timed) - 1) // 2][1]


def _finished_by_all(recorded: list[dict[int, _Recorded]]) -> tuple[int, ...]:
    """In the same segment on every rank: times of two processes of one rank do not compare."""
    common = set.intersection(*(set(steps) for steps in recorded))
    return tuple(sorted(step for step in common if len({steps[step].segment for steps in recorded}) == 1))


def _read_rank(run_dir: Path, rank: int) -> list[_Segment]:
    path = trace_path(run_dir, rank=rank)
    try:
        text = read_bounded(path, most_bytes=_MOST_BYTES).decode(errors="replace")
    except FileNotFoundError as error:
        if rank == 0:
            raise TraceError(f"{run_dir} has no trace: {path} is missing; give the folder of a traced run") from error
        raise TraceError(
            f"the trace of rank {rank} is missing ({path}); copy the files of all ranks together"
        ) from error
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    segments: list[_Segment] = []
    for where, document in _documents(path, text.split("\n")):
        if "fullbore_trace" in document:
            if document["fullbore_trace"] != VERSION:
                raise TraceError(
                    f"this fullbore reads traces of version {VERSION} ({where}: {document['fullbore_trace']!r}); "
                    "read it with the fullbore that wrote it"
                )
            if document.get("rank") != rank:
                raise TraceError(f"the file of rank {rank} says it is of rank {document.get('rank')!r} ({where})")
            segments.append(_Segment(document, where))
        elif not segments:
            raise TraceError(f"a trace begins with a header line ({where} does not)")
        elif "clock_end" in document:
            segments[-1].clock_end = document["clock_end"]
        else:
            segments[-1].steps[document["step"]] = document["spans"]
    if not segments:
        raise TraceError(f"a trace begins with a header line ({path} is empty)")
    return segments


def _documents(path: Path, lines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The whole lines. A broken one is forgiven at the end and before a resumed run's header."""
    while lines and not lines[-1]:
        lines.pop()
    for index, line in enumerate(lines):
        where = f"{path}, line {index + 1}"
        try:
            document = parse_json(line)
        except ValueError as error:
            is_cut_off = index + 1 == len(lines) or lines[index + 1].startswith('{"fullbore_trace"')
            if is_cut_off:
                continue
            raise TraceError(f"a trace line is one JSON document ({where}: {error})") from error
        if not isinstance(document, dict) or not document.keys() & {"fullbore_trace", "step", "clock_end"}:
            raise TraceError(f"a trace line is a header, a step or a closing clock ({where} is none of them)")
        yield where, document


def _alignment(segment: _Segment, *, rank: int, num_ranks: int) -> Alignment:
    clock = segment.header["clock"]
    if clock is None:
        if rank != 0 and num_ranks > 1:
            raise TraceError(
                f"rank {rank} has no clock calibration ({segment.where}), so its spans cannot be put beside rank 0's; "
                "run with calibration, or look at one rank alone"
            )
        clock = {"offset_ns": 0, "uncertainty_ns": 0, "at_ns": None}
    opening = ClockOffset(**clock)
    closing = ClockOffset(**segment.clock_end) if segment.clock_end else None
    edges = [edge for rows in segment.steps.values() for row in rows for edge in row[3:5]] or [0]
    opening_at = opening.at_ns if opening.at_ns is not None else min(edges)
    closing_at = closing.at_ns if closing is not None and closing.at_ns is not None else max(edges)
    return Alignment(opening, closing, opening_at, closing_at)


def _spans(recorded: _Recorded, rank: Rank) -> Iterator[Span]:
    move = recorded.alignment.to_rank_zero
    for row in recorded.rows:
        try:
            kind, action, activity, start, end = row
            yield Span(
                rank=rank,
                row=Row(kind),
                action=None if action is None else Compute.parse(action),
                activity=None if activity is None else Activity(activity),
                start_ns=move(start),
                end_ns=move(end),
            )
        except (ScheduleError, TypeError, ValueError) as error:
            raise TraceError(f"a span is [row, action, activity, start, end] (rank {rank}: {row!r})") from error
