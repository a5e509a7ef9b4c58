"""History: the numbers of a run's steps, and what they come to at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.diagnose.over_steps import RECENT_STEPS
from fullbore.diagnose.slow_stage import SlowStage, find_slow_stage
from fullbore.plan.recompute import with_recompute
from fullbore.plan.resolve import ResolvedRecipe
from fullbore.runtime.mesh import Mesh
from fullbore.schedules.recompute_ahead import recompute_everywhere
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.shift import shifted
from fullbore.timeline.span import Row, Span, Timeline
from fullbore.train.result import TrainResult
from fullbore.train.skipped import SkippedSteps

__all__ = ["History"]


@dataclass(slots=True)
class History:
    """Filled step by step; the first step is left out of medians, since it warms up.

    Every rank notes losses, times and tokens. What takes the spans of all ranks (`account`) is kept on rank 0 only, and
    so it alone can give a `result`.
    """

    skipped: SkippedSteps = field(default_factory=SkippedSteps)
    losses: list[float] = field(default_factory=list)
    eval_losses: list[float] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    """From the start of a step until every rank has updated its weights."""
    tokens: list[int] = field(default_factory=list)
    """Counted tokens of each step; empty where nothing is computed (emulation)."""

    bubbles: list[float] = field(default_factory=list)
    stage_ns: list[dict[int, int]] = field(default_factory=list)
    """Computing time of each stage, step by step."""
    recent: deque[Timeline] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """What all ranks computed in the last steps."""

    def account(self, spans: tuple[Span, ...], *, num_ranks: int, mesh: Mesh) -> float | None:
        """The last step's bubble fraction over all ranks, on rank 0; None elsewhere, where nothing is kept.

        Every rank calls this with its own spans, once the step's time is taken: a step has thousands of them.
        """
        computed = [span for span in spans if span.row is Row.COMPUTE]
        mine = shifted(Timeline.of(computed, num_ranks=num_ranks), by_ns=mesh.clock.offset_ns)
        by_rank = mesh.gather_on_first(mine)
        if not by_rank:
            return None
        together = Timeline.of((span for one in by_rank for span in one.spans), num_ranks=num_ranks)
        busy: dict[int, int] = {}
        for span in together.spans:
            assert span.action is not None, "what computes is an action"
            busy[span.action.stage] = busy.get(span.action.stage, 0) + span.duration_ns
        if len(self.stage_ns) == 1:
            self.recent.clear()
        self.recent.append(together)
        self.stage_ns.append(busy)
        self.bubbles.append(bubble_of(together).bubble_fraction)
        return self.bubbles[-1]

    def result(
        self,
        *,
        run_dir: str,
        resolved: ResolvedRecipe,
        problems: Sequence[str | None],
        costs: Sequence[LayerCost] = (),
        links: Sequence[Link] = (),
    ) -> TrainResult:
        """What `fullbore train` answers.

        Args:
            costs: of the layers, without recomputation; none where none were measured.
            links: one for each stage boundary, as far as known.
        """
        step_ns = round(median(self.step_ns[1:] or self.step_ns))
        counted = self.stage_ns[1:] or self.stage_ns
        busy = {stage: median(step[stage] for step in counted) for stage in sorted(counted[0])}
        predicted = resolved.predicted
        return TrainResult(
            run_dir=run_dir,
            steps=len(self.step_ns),
            skipped_steps=self.skipped.number,
            loss=self.losses[-1] if self.losses else None,
            eval_loss=self.eval_losses[-1] if self.eval_losses else None,
            first_eval_loss=self.eval_losses[0] if self.eval_losses else None,
            tokens_per_s=self._tokens_per_s(),
            step_ns=step_ns,
            bubble_fraction_measured=median(self.bubbles[1:] or self.bubbles),
            bubble_fraction_predicted=predicted.bubble.bubble_fraction if predicted else None,
            predicted_step_ns=predicted.step_ns if predicted else None,
            trace_problems=tuple(problem for problem in problems if problem),
            bottleneck_stage=max(busy, key=busy.__getitem__),
            slow_stage=self._slow_stage(resolved, costs, links) if costs else None,
        )

    def _tokens_per_s(self) -> float | None:
        rates = [tokens * 1e9 / ns for tokens, ns in zip(self.tokens, self.step_ns, strict=False)]
        return median(rates[1:] or rates) if rates else None

    def _slow_stage(
        self, resolved: ResolvedRecipe, costs: Sequence[LayerCost], links: Sequence[Link]
    ) -> SlowStage | None:
        recipe = resolved.recipe
        return find_slow_stage(
            self.recent,
            layers=with_recompute(costs, names=recipe.recompute, ahead=recipe.recompute_ahead),
            layers_per_stage=recipe.layers_per_stage,
            schedule=recompute_everywhere(resolved.schedule) if recipe.recompute_ahead else resolved.schedule,
            links=links,
            accumulation=recipe.accumulation,
        )
