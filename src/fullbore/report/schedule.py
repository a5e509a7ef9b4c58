"""One schedule, simulated: the text and the JSON document behind `fullbore schedule show`.

Times are in the caller's unit (``scale.per_unit`` integers of the timeline are one of it), memory in shares: 1 is one
microbatch's activations on one rank's whole share of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.simulate.bound import load_bound
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_shares
from fullbore.synthesis.bounds import Bound, bound_of
from fullbore.timeline.bubble import Bubble, bubble_of
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Timeline
from fullbore.timeline.text import render_text

__all__ = ["ScheduleReport", "above_cap", "schedule_report"]


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Everything that is said about one schedule with one set of costs."""

    schedule: Schedule
    timeline: Timeline
    bubble: Bubble
    peak_shares: tuple[Fraction, ...]
    """One a rank."""

    lower_bound: Bound
    """On any order of the same actions on the same ranks and within the same memory."""

    scale: TimeScale

    @property
    def num_chunks(self) -> int:
        return self.schedule.num_stages // self.schedule.num_ranks

    @property
    def title(self) -> str:
        chunks = f", {self.num_chunks} stages per rank{_way(self.schedule.placement)}" if self.num_chunks > 1 else ""
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
            "lower_bound": self._units(self.lower_bound.makespan),
            "orders": [[str(action) for action in order] for order in schedule.orders],
        }

    def text(self, *, width: int, color: bool) -> str:
        """The grid and the numbers under it."""
        bubble, scale = self.bubble, self.scale
        grid = render_text(self.timeline, width=width, title=self.title, scale=scale, color=color)
        return (
            f"{grid}\n"
            f"makespan          {scale.format(bubble.makespan_ns)}   ({self.certificate})\n"
            f"busiest rank      {scale.format(bubble.ideal_ns)}\n"
            f"bubble fraction   {bubble.bubble_fraction:.1%} of wall time\n"
            f"bubble overhead   {bubble.bubble_overhead:.1%} on top of the busiest rank's work\n"
            f"peak activations  {_peaks(self.peak_shares)}\n"
        )

    @property
    def certificate(self) -> str:
        """How far from the best possible the makespan is, at most, and what proves it."""
        bound, gap = self.lower_bound, max(self.lower_bound.gap(self.bubble.makespan_ns), 0.0)
        proven = f"{bound.name} bound {self.scale.format(bound.makespan)}"
        nothing_better = "" if gap else ": no order of this work is faster"
        return f"within {_above(gap)} of the best possible, {proven}{nothing_better}"

    def _units(self, ticks: int) -> int | float:
        """Plain numbers in the caller's unit; costs that came in nanoseconds go out in nanoseconds."""
        return ticks if self.scale.suffix else _number(Fraction(ticks, self.scale.per_unit))


def schedule_report(
    schedule: Schedule,
    *,
    costs: Sequence[StageCost],
    links: Sequence[Link] = (),
    memory_cap: Fraction | None = None,
    input_backward_frees: Fraction = Fraction(0),
    scale: TimeScale,
    proven: Bound | None = None,
) -> ScheduleReport:
    """Simulate, account and bound.

    Args:
        costs: one a stage.
        links: one a boundary, or none.
        memory_cap: shares that no order may exceed for the bound; without meaning for a schedule that exceeds them.
        input_backward_frees: part of an activation that the backward for the input already frees.
        proven: a bound that somebody else has proven.
    """
    timeline = simulate(schedule, costs=costs, links=links)
    shares = peak_shares(schedule, input_backward_frees=input_backward_frees)
    bubble = bubble_of(timeline)
    within = ScheduleCosts.of(
        schedule.placement,
        stages=costs,
        links=links,
        memory_cap=memory_cap if above_cap(shares, memory_cap) is None else None,
        input_backward_frees=input_backward_frees,
    )
    bounds = [
        Bound(load_bound(schedule, costs=costs, links=links), "load"),
        bound_of(schedule, costs=within, makespan=bubble.makespan_ns),
        *([] if proven is None else [proven]),
    ]
    return ScheduleReport(
        schedule=schedule,
        timeline=timeline,
        bubble=bubble,
        peak_shares=shares,
        lower_bound=max(bounds, key=lambda bound: bound.makespan),
        scale=scale,
    )


def above_cap(shares: Sequence[Fraction], memory_cap: Fraction | None) -> str | None:
    """What a schedule does that keeps so much on each rank, where that is more than the cap; None where it fits."""
    if memory_cap is None or max(shares) <= memory_cap:
        return None
    return f"keeps {float(max(shares)):g} microbatch-shares on a rank, above the memory cap of {float(memory_cap):g}"


def _way(placement: Placement) -> str:
    """How the stages lie, which whoever runs the schedule elsewhere must know. On one rank they lie in no way."""
    ranks, chunks = placement.num_ranks, placement.num_stages // placement.num_ranks
    if ranks > 1 and placement == Placement.loop(ranks, num_chunks=chunks):
        return " in a loop"
    return " in a V" if ranks > 1 and placement == Placement.snake(ranks, num_chunks=2) else ""


def _peaks(shares: Sequence[Fraction]) -> str:
    if len(shares) > 16:
        return f"{float(min(shares)):g} to {float(max(shares)):g}   (microbatches kept by a rank)"
    return f"{' '.join(f'{float(share):g}' for share in shares)}   (microbatches kept by each rank)"


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _above(gap: float) -> str:
    """Rounded up: the bound is proven, so is what is said of it."""
    return f"{math.ceil(gap * 1000) / 10:.1f}%"


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
