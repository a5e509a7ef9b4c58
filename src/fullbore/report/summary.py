"""What is said at the end of a run: one measured step drawn, accounted for, and held against the prediction.

Imbalance and waiting are different losses: a stage that computes longer than the others sets the rhythm of all, and no
schedule mends that. `fullbore.diagnose.slow_stage` tells them apart; here it is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fullbore.diagnose.over_steps import OverSteps
from fullbore.diagnose.slow_stage import SlowStage
from fullbore.ids import StageIndex
from fullbore.report.slow_stage import render_slow_stage
from fullbore.timeline.bubble import Bubble, bubble_of
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.shift import from_zero
from fullbore.timeline.span import Row, Timeline
from fullbore.timeline.text import render_text

__all__ = ["render_summary"]


@dataclass(frozen=True, slots=True)
class _Slowest:
    """The stage with the highest median of its time over the mean of all stages."""

    stage: StageIndex
    over_mean: OverSteps

    def describe(self) -> str:
        """That median, and what the steps make of it."""
        over = self.over_mean
        ratio = f"{over.median:.2f} times the mean"
        if over.num_steps == 1:
            return f"{ratio} (one step only)"
        mostly = "" if (over.low, over.high) == (over.ratios[0], over.ratios[-1]) else "mostly "
        spread = f"({mostly}{over.low:.2f} to {over.high:.2f} in {over.num_steps} steps)"
        if over.is_above_one:
            return f"{ratio} {spread}"
        return f"{ratio}, {'within the noise' if over.noise else 'so the stages are even'} {spread}"


def render_summary(
    measured: Timeline,
    *,
    steps: Sequence[Timeline] = (),
    predicted: Timeline | None,
    width: int,
    slow_stage: SlowStage | None = None,
    run_dir: Path | None = None,
    step: int | None = None,
    schedule: str | None = None,
    clock_uncertainty_ns: int = 0,
) -> str:
    """The text timeline, a table a rank, the slowest stage, measured against predicted, and what is slow.

    Args:
        measured: one step, as traced; it may start at any time.
        steps: those of the run that count, the measured one among them: they say which stage is the slowest, and
            whether that is more than noise. Without any, the measured one does.
        predicted: one step of the same schedule by the expected layer costs, or None.
        slow_stage: what was found to set the rhythm; None where nothing was.
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
    slowest = _slowest(steps or [shown])
    parts.append(
        f"slowest stage    {slowest.stage}: computes {scale.format(_stage_times(shown)[slowest.stage])} in this step; "
        f"{slowest.describe()}\n" + _comparison(bubble, predicted, scale)
    )
    if clock_uncertainty_ns:
        parts[-1] += f"clocks           agree to {clock_uncertainty_ns / 1000:.3g} us; shorter waits mean nothing\n"
    if slow_stage is not None:
        parts.append(render_slow_stage(slow_stage))
    if run_dir is not None:
        parts.append(f"every span: `fullbore trace export {run_dir} -o trace.json`, then open it in ui.perfetto.dev\n")
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


def _slowest(steps: Sequence[Timeline]) -> _Slowest:
    times = [_stage_times(step) for step in steps]
    over = [_Slowest(stage, OverSteps.of(_over_mean(one, stage) for one in times)) for stage in sorted(times[0])]
    return max(over, key=lambda one: one.over_mean.median)


def _stage_times(timeline: Timeline) -> dict[StageIndex, int]:
    times: dict[StageIndex, int] = {}
    for span in timeline.spans:
        if span.row is Row.COMPUTE and span.action is not None:
            times[span.action.stage] = times.get(span.action.stage, 0) + span.duration_ns
    return times


def _over_mean(times: Mapping[StageIndex, int], stage: StageIndex) -> float:
    mean = sum(times.values()) / len(times) if times else 0
    return times[stage] / mean if mean else 1.0


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
