"""Timelines to draw, export and account for: simulated, and made to look measured."""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Kind
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.shift import shifted
from fullbore.timeline.span import Activity, Row, Span, Timeline


def of_schedule(
    name: str = "1f1b", *, ranks: int = 4, microbatches: int = 8, costs: Sequence[StageCost] | None = None
) -> Timeline:
    """One step; F = 1, B = 2 on every stage unless told."""
    schedule = get(name).build(ranks, num_microbatches=microbatches)
    return simulate(schedule, costs=costs or [StageCost(1, 1, 1)] * schedule.num_stages)


def measured(
    *, ranks: int = 4, microbatches: int = 8, start_ns: int = 0, forwards: Sequence[int] | None = None
) -> Timeline:
    """Milliseconds with odd nanoseconds, recomputation inside the backwards, and a flush at the end."""
    times = forwards or [1_234_567] * ranks
    costs = [StageCost(time, time, time // 2) for time in times]
    timeline = of_schedule(ranks=ranks, microbatches=microbatches, costs=costs)
    spans = list(timeline.spans)
    for span in timeline.spans:
        if span.row is Row.COMPUTE and span.action is not None and span.action.kind is Kind.BACKWARD:
            again = Compute(span.action.stage, Kind.RECOMPUTE, span.action.microbatch)
            spans.append(Span(span.rank, Row.NESTED, again, None, span.start_ns, span.start_ns + span.duration_ns // 3))
    end = timeline.compute_end_ns
    for rank in map(Rank, range(ranks)):
        spans.append(Span(rank, Row.FLUSH, None, Activity.GRADIENT_NORM, end + 10_001, end + 400_003))
        spans.append(Span(rank, Row.FLUSH, None, Activity.OPTIMIZER, end + 400_003, end + 1_900_007))
    return shifted(Timeline.of(spans, num_ranks=ranks), by_ns=start_ns)
