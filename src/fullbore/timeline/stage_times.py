"""What the stages of measured steps took, kind of action by kind: the costs a run has shown."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.timeline.span import Row, Timeline

__all__ = ["stage_times"]


def stage_times(steps: Iterable[Timeline], *, placement: Placement) -> list[dict[Kind, int]]:
    """For each stage of a stream the median duration of its actions of each kind, in nanoseconds: over all steps,
    microbatches and, where two streams hold the same layers, copies.

    A kind that a stage has not run is not there.
    """
    seen: list[dict[Kind, list[int]]] = [{} for _ in range(placement.stages_per_stream)]
    for step in steps:
        for span in step.spans:
            if span.row is Row.COMPUTE and span.action is not None:
                seen[placement.place_of(span.action.stage)].setdefault(span.action.kind, []).append(span.duration_ns)
    return [{kind: median_low(times) for kind, times in kinds.items()} for kinds in seen]
