"""History: the numbers of a run's steps, and what they come to at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from fullbore.plan.resolve import ResolvedRecipe
from fullbore.runtime.mesh import Mesh
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.shift import shifted
from fullbore.timeline.span import Row, Span, Timeline
from fullbore.train.result import TrainResult

__all__ = ["History"]


@dataclass(slots=True)
class History:
    """Filled step by step; the first step is left out of medians, since it warms up."""

    losses: list[float] = field(default_factory=list)
    eval_losses: list[float] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    bubbles: list[float] = field(default_factory=list)
    stage_ns: list[dict[int, int]] = field(default_factory=list)
    """Computing time of each stage, step by step."""

    def account(self, spans: tuple[Span, ...], *, num_ranks: int, mesh: Mesh) -> float:
        """The last step's bubble fraction over all ranks. Every rank calls this with its own spans."""
        computed = [span for span in spans if span.row is Row.COMPUTE]
        mine = shifted(Timeline.of(computed, num_ranks=num_ranks), by_ns=mesh.clock.offset_ns)
        by_rank = mesh.gather(mine)
        together = Timeline.of((span for one in by_rank for span in one.spans), num_ranks=num_ranks)
        busy: dict[int, int] = {}
        for span in together.spans:
            assert span.action is not None, "what computes is an action"
            busy[span.action.stage] = busy.get(span.action.stage, 0) + span.duration_ns
        self.stage_ns.append(busy)
        self.bubbles.append(bubble_of(together).bubble_fraction)
        return self.bubbles[-1]

    def result(
        self, *, run_dir: str, tokens_per_step: int | None, resolved: ResolvedRecipe, problems: Sequence[str | None]
    ) -> TrainResult:
        """What `fullbore train` answers."""
        step_ns = round(median(self.step_ns[1:] or self.step_ns))
        counted = self.stage_ns[1:] or self.stage_ns
        busy = {stage: median(step[stage] for step in counted) for stage in sorted(counted[0])}
        predicted = resolved.predicted
        return TrainResult(
            run_dir=run_dir,
            steps=len(self.step_ns),
            loss=self.losses[-1] if self.losses else None,
            eval_loss=self.eval_losses[-1] if self.eval_losses else None,
            first_eval_loss=self.eval_losses[0] if self.eval_losses else None,
            tokens_per_s=None if tokens_per_step is None else tokens_per_step * 1e9 / step_ns,
            step_ns=step_ns,
            bubble_fraction_measured=median(self.bubbles[1:] or self.bubbles),
            bubble_fraction_predicted=predicted.bubble.bubble_fraction if predicted else None,
            predicted_step_ns=predicted.step_ns if predicted else None,
            trace_problems=tuple(problem for problem in problems if problem),
            bottleneck_stage=max(busy, key=busy.__getitem__),
        )
