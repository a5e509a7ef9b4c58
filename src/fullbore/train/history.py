"""History: the numbers of a run's steps, and what they come to at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from fullbore.plan.resolve import ResolvedRecipe
from fullbore.runtime.mesh import Mesh
from fullbore.timeline.span import Row, Span
from fullbore.train.result import TrainResult

__all__ = ["History"]


@dataclass(slots=True)
class History:
    """Filled step by step; the first step is left out of medians, since it warms up."""

    losses: list[float] = field(default_factory=list)
    eval_losses: list[float] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    bubbles: list[float] = field(default_factory=list)
    busy_ns: list[tuple[int, ...]] = field(default_factory=list)

    def account(self, spans: tuple[Span, ...], *, offset_ns: int, mesh: Mesh) -> float:
        """The last step's bubble fraction over all ranks. Every rank calls this with its own spans."""
        computed = [span for span in spans if span.row is Row.COMPUTE]
        mine = (
            computed[0].start_ns + offset_ns,
            max(span.end_ns for span in computed) + offset_ns,
            sum(span.duration_ns for span in computed),
        )
        by_rank = mesh.gather(mine)
        makespan = max(end for _, end, _ in by_rank) - min(start for start, _, _ in by_rank)
        self.busy_ns.append(tuple(busy for _, _, busy in by_rank))
        self.bubbles.append(1.0 - max(self.busy_ns[-1]) / makespan)
        return self.bubbles[-1]

    def result(self, *, run_dir: str, tokens_per_step: int, resolved: ResolvedRecipe) -> TrainResult:
        """What `fullbore train` answers."""
        step_ns = round(median(self.step_ns[1:] or self.step_ns))
        busy = [median(works) for works in zip(*(self.busy_ns[1:] or self.busy_ns), strict=True)]
        predicted = resolved.predicted
        return TrainResult(
            run_dir=run_dir,
            steps=len(self.step_ns),
            loss=self.losses[-1] if self.losses else None,
            eval_loss=self.eval_losses[-1] if self.eval_losses else None,
            first_eval_loss=self.eval_losses[0] if self.eval_losses else None,
            tokens_per_s=tokens_per_step * 1e9 / step_ns,
            step_ns=step_ns,
            bubble_fraction_measured=median(self.bubbles[1:] or self.bubbles),
            bubble_fraction_predicted=predicted.bubble.bubble_fraction if predicted else None,
            predicted_step_ns=predicted.step_ns if predicted else None,
            bottleneck_stage=max(range(len(busy)), key=busy.__getitem__),
        )
