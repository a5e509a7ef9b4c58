"""A timeline as one SVG picture, from the standard library alone: for a README, a report, a bug report.

One row per rank: a lane of compute boxes (hue = kind, lightness = the rank's k-th stage, microbatch number inside,
recomputation hatched) and under it a thin lane that shows where the rank waited. Good to about 5000 boxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from xml.sax.saxutils import escape

from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Row, Span, Timeline

__all__ = ["render_svg"]

_HUES: Mapping[Kind, tuple[int, int, int]] = MappingProxyType(
    {
        Kind.FORWARD: (213, 72, 64),
        Kind.BACKWARD: (152, 45, 55),
        Kind.BACKWARD_INPUT: (178, 50, 52),
        Kind.BACKWARD_WEIGHT: (33, 85, 62),
        Kind.RECOMPUTE: (265, 40, 66),
    }
)
"""Hue, saturation, lightness of the first chunk; later chunks are lighter."""

_NAMES: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.FORWARD: "forward",
        Kind.BACKWARD: "backward",
        Kind.BACKWARD_INPUT: "backward, input",
        Kind.BACKWARD_WEIGHT: "backward, weights",
        Kind.RECOMPUTE: "recompute",
    }
)
_LEFT, _RIGHT, _TOP, _PLOT = 64, 92, 58, 1000
_LANE, _THIN, _GAP = 26, 6, 8
_PITCH = _LANE + _THIN + _GAP
_FONT = "font-family='Helvetica, Arial, sans-serif'"


def render_svg(timeline: Timeline, *, title: str, scale: TimeScale | None = None) -> str:
    """A complete SVG document. Bubble numbers stand in the caption, busy shares at the row ends."""
    scale = scale or TimeScale()
    spans = timeline.spans
    origin = min((span.start_ns for span in spans), default=0)
    length = max(max((span.end_ns for span in spans), default=0) - origin, 1)
    drawing = _Drawing(timeline, scale=scale, origin=origin, length=length)
    height = _TOP + timeline.num_ranks * _PITCH + 62
    width = _LEFT + _PLOT + _RIGHT
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' role='img' {_FONT}>",
        f"<title>{escape(title)}</title>",
        "<defs><pattern id='hatch' width='5' height='5' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><rect width='2' height='5' fill='#ffffff' fill-opacity='0.55'/>"
        "</pattern></defs>",
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        f"<text x='{_LEFT}' y='24' font-size='16' font-weight='bold' fill='#222222'>{escape(title)}</text>",
        f"<text x='{_LEFT}' y='44' font-size='12' fill='#555555'>{escape(_caption(timeline, scale))}</text>",
        *drawing.axis(),
        *drawing.rows(),
        *(shape for span in spans for shape in drawing.span(span)),
        *drawing.legend(y=height - 14),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _caption(timeline: Timeline, scale: TimeScale) -> str:
    bubble = bubble_of(timeline)
    return (
        f"makespan {scale.format(bubble.makespan_ns)}, busiest rank {scale.format(bubble.ideal_ns)}, "
        f"bubble fraction {bubble.bubble_fraction:.1%} of wall time, "
        f"bubble overhead {bubble.bubble_overhead:.1%} on top of the work"
    )


class _Drawing:
    """Knows where a time and a rank lie on the page."""

    def __init__(self, timeline: Timeline, *, scale: TimeScale, origin: int, length: int) -> None:
        self._timeline, self._scale, self._origin, self._length = timeline, scale, origin, length
        self._bottom = _TOP + timeline.num_ranks * _PITCH
        self._chunks = _chunks(timeline)

    def _x(self, time: int) -> float:
        return _LEFT + (time - self._origin) * _PLOT / self._length

    @staticmethod
    def _y(rank: int) -> int:
        return _TOP + rank * _PITCH

    def axis(self) -> list[str]:
        marks = self._scale.ticks(self._length, at_most=12)
        shapes = []
        for mark in marks:
            x = self._x(self._origin + mark)
            text = self._scale.axis_label(mark) + (self._scale.suffix if mark == marks[-1] else "")
            shapes.append(
                f"<line x1='{x:.2f}' x2='{x:.2f}' y1='{_TOP - 4}' y2='{self._bottom}' stroke='#dddddd'/>"
                f"<text x='{x:.2f}' y='{self._bottom + 14}' font-size='11' fill='#555555' "
                f"text-anchor='middle'>{escape(text)}</text>"
            )
        return shapes

    def rows(self) -> list[str]:
        bubble = bubble_of(self._timeline)
        shapes = []
        for rank in range(self._timeline.num_ranks):
            y = self._y(rank)
            busy = bubble.busy_ns[rank] / bubble.makespan_ns if bubble.makespan_ns else 0.0
            shapes.append(
                f"<text x='{_LEFT - 8}' y='{y + 17}' font-size='12' fill='#222222' text-anchor='end'>rank {rank}</text>"
                f"<rect x='{_LEFT}' y='{y}' width='{_PLOT}' height='{_LANE}' fill='#f3f3f3'/>"
                f"<text x='{_LEFT + _PLOT + 8}' y='{y + 17}' font-size='12' fill='#222222'>{busy:.0%} busy</text>"
            )
        return shapes

    def span(self, span: Span) -> list[str]:
        y = self._y(span.rank)
        x, width = self._x(span.start_ns), self._x(span.end_ns) - self._x(span.start_ns)
        tip = f"{span.row.value} {span.label}: {self._scale.format(span.duration_ns)}"
        match span.row:
            case Row.COMPUTE:
                return [_box(x, y, width, _LANE, fill=self._fill(span), tip=tip), *self._number(span, x, y, width)]
            case Row.NESTED:
                fills = (self._fill(span), "url(#hatch)")
                return [_box(x, y + _LANE - 6, width, 6, fill=fill, tip=tip) for fill in fills]
            case Row.WAIT:
                return [_box(x, y + _LANE + 1, width, _THIN - 1, fill="#e06c6c", tip=tip)]
            case Row.FLUSH:
                return [_box(x, y + 5, width, _LANE - 10, fill="#9a9aa8", tip=tip)]

    def _fill(self, span: Span) -> str:
        if span.action is None:
            return "#9a9aa8"
        hue, saturation, lightness = _HUES[span.action.kind]
        lighter = min(lightness + 14 * self._chunks[span.rank].index(span.action.stage), 90)
        return _hex(hue, saturation, lighter)

    @staticmethod
    def _number(span: Span, x: float, y: int, width: float) -> list[str]:
        text = span.action.unit if span.action is not None else ""
        size = min(12.0, 1.6 * width / max(len(text), 1))
        if not text or size < 6:
            return []
        at = f"x='{x + width / 2:.2f}' y='{y + 16}'"
        return [f"<text {at} font-size='{size:.1f}' fill='#16202a' text-anchor='middle'>{text}</text>"]

    def legend(self, *, y: int) -> list[str]:
        spans = self._timeline.spans
        used = {span.action.kind for span in spans if span.action is not None and span.row is not Row.WAIT}
        entries = [(_hex(*_HUES[kind]), name) for kind, name in _NAMES.items() if kind in used]
        rows = {span.row for span in spans}
        if Row.WAIT in rows:
            entries.append(("#e06c6c", "waiting for a message"))
        if Row.FLUSH in rows:
            entries.append(("#9a9aa8", "flush"))
        if any(len(stages) > 1 for stages in self._chunks):
            entries.append(("none", "lighter: a later stage of the rank"))
        shapes, x = [], _LEFT
        for fill, name in entries:
            if fill != "none":
                shapes.append(f"<rect x='{x}' y='{y - 10}' width='12' height='12' fill='{fill}'/>")
            shapes.append(f"<text x='{x + 17}' y='{y}' font-size='12' fill='#333333'>{escape(name)}</text>")
            x += 17 + 7 * len(name) + 14
        return shapes


def _box(x: float, y: float, width: float, height: float, *, fill: str, tip: str) -> str:
    return (
        f"<rect x='{x:.2f}' y='{y}' width='{max(width, 0.2):.2f}' height='{height}' fill='{fill}' "
        f"stroke='#ffffff' stroke-width='{0.6 if width > 3 else 0}'><title>{escape(tip)}</title></rect>"
    )


def _chunks(timeline: Timeline) -> tuple[tuple[StageIndex, ...], ...]:
    """The stages each rank works for, in model order: a stage's place is its chunk."""
    held: list[set[StageIndex]] = [set() for _ in range(timeline.num_ranks)]
    for span in timeline.spans:
        if span.action is not None:
            held[span.rank].add(span.action.stage)
    return tuple(tuple(sorted(stages)) for stages in held)


def _hex(hue: int, saturation: int, lightness: int) -> str:
    """HSL as ``#rrggbb``: every viewer knows that form, not every one knows ``hsl()``."""
    chroma = saturation / 100 * min(lightness / 100, 1 - lightness / 100)

    def channel(offset: int) -> int:
        place = (offset + hue / 30) % 12
        return round(255 * (lightness / 100 - chroma * max(-1.0, min(place - 3, 9 - place, 1))))

    return f"#{channel(0):02x}{channel(8):02x}{channel(4):02x}"
