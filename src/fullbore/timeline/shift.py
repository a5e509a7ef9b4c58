"""Moving a timeline along the time axis.

A trace keeps the absolute nanoseconds of rank 0's clock, so steps can be put side by side; a drawing or a
comparison of one step wants to start at 0.
"""

from __future__ import annotations

from dataclasses import replace

from fullbore.timeline.span import Timeline

__all__ = ["from_zero", "shifted"]


def shifted(timeline: Timeline, *, by_ns: int) -> Timeline:
    """The same spans, ``by_ns`` later."""
    spans = tuple(replace(s, start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns) for s in timeline.spans)
    return Timeline(timeline.num_ranks, spans)


def from_zero(timeline: Timeline) -> Timeline:
    """Shifted so that the first compute span of any rank starts at 0."""
    return shifted(timeline, by_ns=-timeline.compute_start_ns)
