"""What the stages of measured steps took, kind of action by kind: the costs a run has shown."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from fullbore.ir.action import Kind
from fullbore.timeline.span import Row, Timeline

__all__ = ["stage_times"]


def stage_times(steps: Iterable[Timeline], *, num_stages: int) -> list[dict[Kind, int]]:
    """For each stage the median duration of its actions of each kind, over all steps and microbatches; nanoseconds.

    A kind that a stage has not run is not there.
    """
    seen: list[dict[Kind, list[int]]] = [{} for _ in range(num_stages)]
    for step in steps:
        for span in step.spans:
            if span.row is Row.COMPUTE and span.action is not None:
                seen[span.action.stage].setdefault(span.action.kind, []).append(span.duration_ns)
    return [{kind: median_low(times) for kind, times in kinds.items()} for kinds in seen]
