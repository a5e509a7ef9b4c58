"""A timeline as a text grid: one row per rank, time from left to right.

    r0 F0F1........B0==F2B1==F3B2==..B3==  73%  27%
    r1 ..F0F1..B0==F2B1== ...

Where all times are multiples of one unit the grid is exact: every unit is equally many characters, wide enough
for its label, and a grid wider than the page is folded into panels. Measured times are scaled to the page
(or up to three) instead, and a box too narrow for its label shows its kind, or nothing but its fill.

Letters: F forward, B backward, I backward for the input, W backward for the weights, R recomputation ahead of them.
Where a rank holds several stages the label is the whole action, ``4F0``: stage, kind, microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from fullbore.ir.action import Kind
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Row, Span, Timeline

__all__ = ["render_text"]

_FILL: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.FORWARD: "-",
        Kind.BACKWARD: "=",
        Kind.BACKWARD_INPUT: "=",
        Kind.BACKWARD_WEIGHT: "+",
        Kind.RECOMPUTE: "~",
    }
)
_FLUSH_FILL, _IDLE = "#", "."
_MEANING: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.FORWARD: "forward",
        Kind.BACKWARD: "backward",
        Kind.BACKWARD_INPUT: "backward for the input",
        Kind.BACKWARD_WEIGHT: "backward for the weights",
        Kind.RECOMPUTE: "recomputation",
    }
)
_HUE: Mapping[str, str] = MappingProxyType(
    {
        "-": "48;5;75;38;5;16",
        "=": "48;5;114;38;5;16",
        "+": "48;5;215;38;5;16",
        "~": "48;5;151;38;5;16",
    }
)
_LAYER: Mapping[Row, int] = MappingProxyType({Row.COMPUTE: 0, Row.FLUSH: 1, Row.NESTED: 2})
"""What is drawn, and what over what."""

_MOST_PANELS, _MOST_SCALED_PANELS = 8, 3


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where a time lies: ``columns`` characters stand for ``length`` ticks from ``origin``."""

    origin: int
    length: int
    columns: int
    unit: int | None
    """Characters per unit in an exact grid; None where time was scaled to the page."""

    def column(self, time: int) -> int:
        """Rounded to the nearest column, halves down, so that neighbours stay neighbours."""
        return (2 * (time - self.origin) * self.columns + self.length - 1) // (2 * self.length)


@dataclass(frozen=True, slots=True)
class _Cells:
    """One row: what stands in each column, and the fill of the box it belongs to."""

    text: str
    ink: str

    def part(self, first: int, end: int) -> _Cells:
        return _Cells(self.text[first:end], self.ink[first:end])


def render_text(
    timeline: Timeline,
    *,
    width: int,
    title: str | None = None,
    scale: TimeScale | None = None,
    color: bool = False,
) -> str:
    """The grid, its time axis, busy and idle shares at the row ends, and a legend. Lines end without blanks.

    Shares are of the time from the first compute start to the last compute end over all ranks.

    Args:
        width: columns of the page; an exact grid is folded at it.
        scale: how times are written; plain ticks without one.
        color: ANSI backgrounds instead of fill characters.
    """
    scale = scale or TimeScale()
    lines = [title] if title else []
    compute = [span for span in timeline.spans if span.row is Row.COMPUTE]
    if not compute:
        return "\n".join([*lines, "(an empty timeline)"]) + "\n"
    head = len(f"r{timeline.num_ranks - 1} ")
    tail = len(" 100% 100%")
    several = timeline.has_several_stages
    grid = _grid(timeline, available=max(width - head - tail, 20), several=several)
    by_rank: list[list[Span]] = [[] for _ in range(timeline.num_ranks)]
    for span in sorted(timeline.spans, key=lambda span: _LAYER.get(span.row, 0)):
        if span.row in _LAYER:
            by_rank[span.rank].append(span)
    rows = [_row(spans, grid=grid, several=several) for spans in by_rank]
    bubble = bubble_of(timeline)
    shares = [min(busy / max(bubble.makespan_ns, 1), 1.0) for busy in bubble.busy_ns]
    panel = _panel_columns(grid, available=max(width - head - tail, 20))
    for first in range(0, grid.columns, panel):
        end = min(first + panel, grid.columns)
        is_last = end == grid.columns
        axis = " " * head + _axis(grid, scale, first=first, end=end)
        lines.append((axis + " busy idle" if is_last else axis).rstrip())
        for rank, row in enumerate(rows):
            cells = _painted(row.part(first, end), color=color)
            busy = shares[rank]
            ending = f" {busy:4.0%} {1 - busy:4.0%}" if is_last else ""
            lines.append(f"{f'r{rank}':<{head}}{cells}{ending}".rstrip())
        if not is_last:
            lines.append("")
    lines.append(_legend(timeline))
    return "\n".join(lines) + "\n"


def _grid(timeline: Timeline, *, available: int, several: bool) -> _Grid:
    """Exact if the folded grid stays short enough to read, else scaled to the page."""
    drawn = [span for span in timeline.spans if span.row in (Row.COMPUTE, Row.FLUSH)]
    origin = min(span.start_ns for span in drawn)
    length = max(max(span.end_ns for span in drawn) - origin, 1)
    edges = (edge - origin for span in drawn for edge in (span.start_ns, span.end_ns))
    unit = math.gcd(*edges) or 1
    wide = 2
    for span in drawn:
        if span.duration_ns:
            wide = max(wide, math.ceil(len(_label(span, several=several)) * unit / span.duration_ns))
    units = length // unit
    if units * wide <= available * _MOST_PANELS:
        fits_wider = units * (wide + 1) <= available
        wide += 1 if fits_wider else 0
        return _Grid(origin, length, units * wide, wide)
    return _Grid(origin, length, _scaled_columns(drawn, length=length, available=available, several=several), None)


def _scaled_columns(drawn: Sequence[Span], *, length: int, available: int, several: bool) -> int:
    """The page, or up to three of them if nine boxes in ten then have room for their labels."""
    needed = sorted(
        math.ceil(len(_label(span, several=several)) * length / span.duration_ns) for span in drawn if span.duration_ns
    )
    wanted = needed[len(needed) * 9 // 10] if needed else 0
    is_worth_folding = available * 5 // 4 < wanted <= available * _MOST_SCALED_PANELS
    return wanted if is_worth_folding else available


def _panel_columns(grid: _Grid, *, available: int) -> int:
    """As few panels as fit the page, about equally wide, cut between units."""
    unit = grid.unit or 1
    units = grid.columns // unit
    panels = math.ceil(units / max(available // unit, 1))
    return math.ceil(units / panels) * unit


def _row(spans: Sequence[Span], *, grid: _Grid, several: bool) -> _Cells:
    ink = [_IDLE] * grid.columns
    for span in spans:
        fill = _FILL[span.action.kind] if span.action is not None else _FLUSH_FILL
        for column in range(grid.column(span.start_ns), grid.column(span.end_ns)):
            ink[column] = fill
    text = list(ink)
    for span in spans:
        first, room = grid.column(span.start_ns), grid.column(span.end_ns) - grid.column(span.start_ns)
        label = "" if span.row is Row.NESTED else _label(span, several=several)
        if len(label) > room and span.action is not None:
            label = span.action.kind.value
        leading = _leading(ink[first : first + room], _FILL[Kind.RECOMPUTE])
        if leading + len(label) <= room:
            first += leading
        if len(label) <= room:
            text[first : first + len(label)] = label
    return _Cells("".join(text), "".join(ink))


def _leading(ink: Sequence[str], fill: str) -> int:
    """A backward that begins with recomputation has its label after it: ``~~B0==``."""
    return next((count for count, cell in enumerate(ink) if cell != fill), len(ink))


def _label(span: Span, *, several: bool) -> str:
    if span.action is None:
        return ""
    return str(span.action) if several else f"{span.action.kind.value}{span.action.unit}"


def _axis(grid: _Grid, scale: TimeScale, *, first: int, end: int) -> str:
    """Numbers stand at the column where their time begins."""
    marks = scale.ticks(grid.length, at_most=max(grid.columns // 12, 2))
    axis = [" "] * (end - first)
    free = 0
    for mark in marks:
        text = scale.axis_label(mark)
        if mark == marks[-1] and scale.suffix:
            text += scale.suffix
        at = grid.column(grid.origin + mark) - first
        if free <= at and at + len(text) <= len(axis):
            axis[at : at + len(text)] = text
            free = at + len(text) + 1
    return "".join(axis)


def _legend(timeline: Timeline) -> str:
    kinds = {span.action.kind for span in timeline.spans if span.row is Row.COMPUTE and span.action is not None}
    parts = [f"{kind.value}{_FILL[kind]} {_MEANING[kind]}" for kind in _MEANING if kind in kinds]
    if Kind.RECOMPUTE not in kinds and any(span.row is Row.NESTED for span in timeline.spans):
        parts.append("~ recomputation")
    if any(span.row is Row.FLUSH for span in timeline.spans):
        parts.append("# flush")
    return "   ".join([*parts, ". idle"])


def _painted(row: _Cells, *, color: bool) -> str:
    """The characters, or with ``color`` the same labels on backgrounds instead of fills."""
    if not color:
        return row.text
    out: list[str] = []
    for ink, run in groupby(zip(row.text, row.ink, strict=True), key=lambda cell: cell[1]):
        text = "".join(" " if character == ink else character for character, _ in run)
        out.append(f"\x1b[{_HUE[ink]}m{text}\x1b[0m" if ink in _HUE else text.replace(" ", ink))
    return "".join(out)
