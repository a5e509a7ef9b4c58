"""Moving a timeline along the time axis.

A trace keeps the absolute nanoseconds of rank 0's clock, so steps can be put side by side; a drawing or a
comparison of one step wants to start at 0.
"""

from __future__ import annotations

from dataclasses import replace

from fullbore.ids import MicrobatchIndex
from fullbore.ir.action import Compute
from fullbore.timeline.span import Timeline

__all__ = ["from_zero", "repeated", "shifted"]


def shifted(timeline: Timeline, *, by_ns: int) -> Timeline:
    """The same spans, ``by_ns`` later."""
    spans = tuple(replace(s, start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns) for s in timeline.spans)
    return Timeline(timeline.num_ranks, spans)


def from_zero(timeline: Timeline) -> Timeline:
    """Shifted so that the first compute span of any rank starts at 0."""
    return shifted(timeline, by_ns=-timeline.compute_start_ns)


def repeated(timeline: Timeline, *, times: int, num_microbatches: int) -> Timeline:
    """One pass after another, each starting when the last has ended; microbatches are numbered on (accumulation)."""
    length = timeline.compute_end_ns - timeline.compute_start_ns
    spans = [
        replace(
            span,
            action=span.action and _numbered_on(span.action, number * num_microbatches),
            start_ns=span.start_ns + number * length,
            end_ns=span.end_ns + number * length,
        )
        for number in range(times)
        for span in timeline.spans
    ]
    return Timeline.of(spans, num_ranks=timeline.num_ranks)


def _numbered_on(action: Compute, by: int) -> Compute:
    return replace(action, microbatch=MicrobatchIndex(action.microbatch + by))
