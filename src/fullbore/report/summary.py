"""What is said at the end of a run: one measured step drawn, accounted for, and held against the prediction.

Imbalance and waiting are different losses and are told apart here: a stage that computes longer than the mean sets
the rhythm of all, and no schedule mends that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fullbore.ids import StageIndex
from fullbore.timeline.bubble import Bubble, bubble_of
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.shift import from_zero
from fullbore.timeline.span import Row, Timeline
from fullbore.timeline.text import render_text

__all__ = ["render_summary"]

_UNEVEN = 1.1
"""A slowest stage above this many times the mean is called out."""


@dataclass(frozen=True, slots=True)
class _Slowest:
    stage: StageIndex
    time_ns: int
    over_mean: float


def render_summary(
    measured: Timeline,
    *,
    predicted: Timeline | None,
    width: int,
    run_dir: Path | None = None,
    step: int | None = None,
    schedule: str | None = None,
    clock_uncertainty_ns: int = 0,
) -> str:
    """The text timeline, a table a rank, the slowest stage, measured against predicted, and where to look next.

    Args:
        measured: one step, as traced; it may start at any time.
        predicted: one pass of the same schedule by the measured layer costs, or None.
        run_dir: named in the advice, where the run was traced.
        clock_uncertainty_ns: between ranks; told, because waits below it mean nothing.
    """
    scale = TimeScale.milliseconds()
    shown = from_zero(measured)
    bubble = bubble_of(shown)
    title = " ".join(["measured", *([f"step {step}"] if step is not None else ["step"])])
    title += f" of {schedule}" if schedule else ""
    parts = [render_text(shown, width=width, title=title, scale=scale)]
    if bubble.makespan_ns == 0:
        return parts[0]
    parts.append(_table(shown, bubble, scale))
    slowest = _slowest(shown)
    parts.append(
        f"slowest stage    {slowest.stage}: computes {scale.format(slowest.time_ns)} a step, "
        f"{slowest.over_mean:.2f} times the mean\n" + _comparison(bubble, predicted, scale)
    )
    if clock_uncertainty_ns:
        parts[-1] += f"clocks           agree to {clock_uncertainty_ns / 1000:.3g} us; shorter waits mean nothing\n"
    parts.append(_next(slowest, shown, bubble, run_dir=run_dir, schedule=schedule))
    return "\n".join(parts)


def _table(timeline: Timeline, bubble: Bubble, scale: TimeScale) -> str:
    """Waiting is the part of idle in which the rank stood before a message; the rest is fill, drain and the host."""
    lines = ["rank  stages          busy          idle       waiting  busy share"]
    for rank in range(timeline.num_ranks):
        stages = sorted({s.action.stage for s in timeline.on(rank, Row.COMPUTE) if s.action is not None})
        waiting = sum(
            max(min(s.end_ns, timeline.compute_end_ns) - max(s.start_ns, timeline.compute_start_ns), 0)
            for s in timeline.on(rank, Row.WAIT)
        )
        busy, idle = bubble.busy_ns[rank], bubble.idle_ns[rank]
        times = "".join(f"{scale.format(time):>14}" for time in (busy, idle, waiting))
        lines.append(f"{rank:>4}  {','.join(map(str, stages)):<6}{times}  {busy / bubble.makespan_ns:>9.1%}")
    return "\n".join(lines) + "\n"


def _slowest(timeline: Timeline) -> _Slowest:
    times: dict[StageIndex, int] = {}
    for span in timeline.spans:
        if span.row is Row.COMPUTE and span.action is not None:
            times[span.action.stage] = times.get(span.action.stage, 0) + span.duration_ns
    stage = max(sorted(times), key=lambda key: times[key])
    mean = sum(times.values()) / len(times)
    return _Slowest(stage, times[stage], times[stage] / mean if mean else 1.0)


def _comparison(bubble: Bubble, predicted: Timeline | None, scale: TimeScale) -> str:
    idle = sum(bubble.idle_fraction) / len(bubble.idle_fraction)
    share = f"ranks idle       {idle:.1%} of the pass on average; the busiest rank sets the bubble fraction\n"
    if predicted is None:
        return share + (
            f"bubble fraction  {bubble.bubble_fraction:.1%} of wall time (not predicted)\n"
            f"pipeline pass    {scale.format(bubble.makespan_ns)} (not predicted)\n"
        )
    expected = bubble_of(predicted)
    change = bubble.makespan_ns / expected.makespan_ns - 1 if expected.makespan_ns else 0.0
    return share + (
        f"bubble fraction  {bubble.bubble_fraction:.1%} of wall time, predicted {expected.bubble_fraction:.1%}\n"
        f"pipeline pass    {scale.format(bubble.makespan_ns)}, predicted {scale.format(expected.makespan_ns)} "
        f"({change:+.1%})\n"
    )


def _next(slowest: _Slowest, timeline: Timeline, bubble: Bubble, *, run_dir: Path | None, schedule: str | None) -> str:
    lines = []
    where = str(run_dir) if run_dir is not None else "RUN_DIR"
    if slowest.over_mean > _UNEVEN:
        stages = {span.action.stage for span in timeline.spans if span.action is not None}
        chunks = len(stages) // timeline.num_ranks
        sizes = f"-p {timeline.num_ranks}" + (f" -v {chunks} --schedule {schedule}" if chunks > 1 and schedule else "")
        mean_ns = slowest.time_ns / slowest.over_mean
        lost_ns = round(slowest.time_ns - mean_ns)
        idle_ns = bubble.makespan_ns - max(bubble.busy_ns)
        what = "imbalance, not waiting" if lost_ns > idle_ns else "imbalance, and more than that is lost to waiting"
        lines.append(
            f"stage {slowest.stage} computes {slowest.over_mean - 1:.0%} more than the mean: {what}; "
            f"`fullbore partition {where} {sizes}` cuts by what the stages of this run took"
        )
    if run_dir is not None:
        lines.append(f"every span: `fullbore trace export {where} -o trace.json`, then open it in ui.perfetto.dev")
    return "\n".join(lines) + ("\n" if lines else "")
