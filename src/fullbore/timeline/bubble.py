"""Bubble: how much of a timeline is idle, in words that are never confused.

    makespan          last compute end - first compute start, over all ranks
    ideal             the busiest rank's work: no order of the same actions can be shorter
    bubble fraction   1 - ideal / makespan      a share of wall time, in [0, 1)
    bubble overhead   makespan / ideal - 1      relative to ideal compute time; may exceed 1

Measured and predicted timelines go through the same function. The flush is not in it: it is accounted beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.timeline.span import Row, Timeline

__all__ = ["Bubble", "bubble_of"]


@dataclass(frozen=True, slots=True)
class Bubble:
    """Where the time of one step went, per rank and as a whole."""

    makespan_ns: int
    """First compute start to last compute end, over all ranks."""

    busy_ns: tuple[int, ...]
    """Work of each rank."""

    span_ns: tuple[int, ...]
    """First start to last end of each rank by itself."""

    @property
    def ideal_ns(self) -> int:
        """The busiest rank's work."""
        return max(self.busy_ns, default=0)

    @property
    def idle_ns(self) -> tuple[int, ...]:
        """Makespan less work, of each rank."""
        return tuple(self.makespan_ns - busy for busy in self.busy_ns)

    @property
    def idle_fraction(self) -> tuple[float, ...]:
        """Idle share of wall time, of each rank."""
        return tuple(_share(idle, self.makespan_ns) for idle in self.idle_ns)

    @property
    def bubble_fraction(self) -> float:
        """1 - ideal / makespan: a share of wall time. Never above 1."""
        return _share(self.makespan_ns - self.ideal_ns, self.makespan_ns)

    @property
    def bubble_overhead(self) -> float:
        """makespan / ideal - 1: relative to ideal compute time. May exceed 1, and is no share of time."""
        return _share(self.makespan_ns - self.ideal_ns, self.ideal_ns)

    @property
    def span_bubble_fraction(self) -> float:
        """1 - ideal / longest span of any one rank: a share of that rank's time.

        It leaves out what ranks wait before their first and after their last action, which the next step may fill.
        """
        longest = max(self.span_ns, default=0)
        return _share(longest - self.ideal_ns, longest)


def bubble_of(timeline: Timeline) -> Bubble:
    """Account for one step. Linear in the number of spans; only COMPUTE spans count as work."""
    busy = [0] * timeline.num_ranks
    start: list[int | None] = [None] * timeline.num_ranks
    end = [0] * timeline.num_ranks
    for span in timeline.spans:
        if span.row is not Row.COMPUTE:
            continue
        first = start[span.rank]
        start[span.rank] = span.start_ns if first is None else min(first, span.start_ns)
        end[span.rank] = span.end_ns if first is None else max(end[span.rank], span.end_ns)
        busy[span.rank] += span.duration_ns
    spans = tuple(0 if first is None else last - first for first, last in zip(start, end, strict=True))
    return Bubble(timeline.compute_end_ns - timeline.compute_start_ns, tuple(busy), spans)


def _share(part: int, whole: int) -> float:
    """0 where there is no time at all."""
    return part / whole if whole else 0.0
