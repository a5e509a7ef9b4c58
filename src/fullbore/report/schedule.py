"""One schedule, simulated: the text and the JSON document behind `fullbore schedule show`.

Times are in the caller's unit (``ticks_per_unit`` integers of the timeline are one of it), memory in shares: 1 is one
microbatch's activations on one rank's whole share of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.schedule import Schedule
from fullbore.simulate.bound import load_bound
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.bubble import Bubble, bubble_of
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Timeline
from fullbore.timeline.text import render_text

__all__ = ["ScheduleReport", "schedule_report"]


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Everything that is said about one schedule with one set of costs."""

    schedule: Schedule
    timeline: Timeline
    bubble: Bubble
    peak_shares: tuple[Fraction, ...]
    """One a rank."""

    lower_bound: int
    scale: TimeScale

    @property
    def num_chunks(self) -> int:
        return self.schedule.num_stages // self.schedule.num_ranks

    @property
    def title(self) -> str:
        chunks = f", {self.num_chunks} stages per rank" if self.num_chunks > 1 else ""
        sizes = f"{_count(self.schedule.num_ranks, 'rank')}, {_count(self.schedule.num_microbatches, 'microbatch')}"
        return f"{self.schedule.name}: {sizes}{chunks}"

    def document(self) -> dict[str, Any]:
        """The JSON answer."""
        schedule, bubble = self.schedule, self.bubble
        return {
            "name": schedule.name,
            "ranks": schedule.num_ranks,
            "chunks": self.num_chunks,
            "microbatches": schedule.num_microbatches,
            "stages": schedule.num_stages,
            "placement": [[rank] for rank in schedule.placement.ranks],
            "makespan": self._units(bubble.makespan_ns),
            "ideal": self._units(bubble.ideal_ns),
            "bubble_fraction": bubble.bubble_fraction,
            "span_bubble_fraction": bubble.span_bubble_fraction,
            "bubble_overhead": bubble.bubble_overhead,
            "peak_activations": [_number(share) for share in self.peak_shares],
            "lower_bound": self._units(self.lower_bound),
            "orders": [[str(action) for action in order] for order in schedule.orders],
        }

    def text(self, *, width: int, color: bool) -> str:
        """The grid and the numbers under it."""
        bubble, scale = self.bubble, self.scale
        grid = render_text(self.timeline, width=width, title=self.title, scale=scale, color=color)
        bound = scale.format(self.lower_bound)
        best = "no order of this work is faster" if self.lower_bound == bubble.makespan_ns else "of any order"
        return (
            f"{grid}\n"
            f"makespan          {scale.format(bubble.makespan_ns)}   (lower bound {bound}: {best})\n"
            f"busiest rank      {scale.format(bubble.ideal_ns)}\n"
            f"bubble fraction   {bubble.bubble_fraction:.1%} of wall time\n"
            f"bubble overhead   {bubble.bubble_overhead:.1%} on top of the busiest rank's work\n"
            f"peak activations  {_peaks(self.peak_shares)}\n"
        )

    def _units(self, ticks: int) -> int | float:
        """Plain numbers in the caller's unit; costs that came in nanoseconds go out in nanoseconds."""
        return ticks if self.scale.suffix else _number(Fraction(ticks, self.scale.per_unit))


def schedule_report(
    schedule: Schedule, *, costs: Sequence[StageCost], links: Sequence[Link] = (), scale: TimeScale
) -> ScheduleReport:
    """Simulate and account. ``costs`` one a stage, ``links`` one a boundary or none."""
    timeline = simulate(schedule, costs=costs, links=links)
    held = [len(schedule.placement.stages_of(rank)) for rank in sorted(set(schedule.placement.ranks))]
    peaks = peak_activations(schedule)
    return ScheduleReport(
        schedule=schedule,
        timeline=timeline,
        bubble=bubble_of(timeline),
        peak_shares=tuple(Fraction(peak, chunks) for peak, chunks in zip(peaks, held, strict=True)),
        lower_bound=load_bound(schedule, costs=costs, links=links),
        scale=scale,
    )


def _peaks(shares: Sequence[Fraction]) -> str:
    if len(shares) > 16:
        return f"{float(min(shares)):g} to {float(max(shares)):g}   (microbatches kept by a rank)"
    return f"{' '.join(f'{float(share):g}' for share in shares)}   (microbatches kept by each rank)"


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
