"""The training loop of one rank: draw, step, clip, update, evaluate, record."""

from __future__ import annotations

import math
import time
from pathlib import Path

from fullbore.config.dump import dump_run
from fullbore.config.run import RunConfig
from fullbore.costs.layer import write_costs
from fullbore.data.batches import SampleOrder
from fullbore.plan.recipe_file import write_recipe
from fullbore.runtime.clock import read_clock
from fullbore.runtime.launch import Worker
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.runtime.pipeline import Pipeline
from fullbore.session.session import Session, build_pipeline, open_session, tensors
from fullbore.timeline.span import Activity
from fullbore.trace.clock import ClockOffset
from fullbore.trace.writer import TraceWriter
from fullbore.train.history import History
from fullbore.train.learning_rate import learning_rate
from fullbore.train.metrics import MetricsLog
from fullbore.train.progress import TrainProgress, open_progress
from fullbore.train.result import TrainResult

__all__ = ["train_rank"]


def train_rank(worker: Worker | None, config: RunConfig, run_dir: str) -> TrainResult:
    """Train as configured; every rank runs this. The result is complete on rank 0.

    Raises:
        InputError: the configuration cannot be run; the same on every rank.
        RankFailed: this rank or a neighbour failed.
    """
    folder = Path(run_dir)
    session = open_session(worker, config)
    clock = read_clock(session.place.mesh)
    rank = session.place.mesh.rank
    if rank == 0:
        _write_run_files(folder, config, session)
    schedule = session.resolved.schedule
    with TraceWriter(
        folder,
        rank=rank,
        placement=schedule.placement,
        schedule=schedule.name,
        clock=ClockOffset(clock.offset_ns, clock.uncertainty_ns, clock.at_ns),
    ) as writer:
        pipeline = build_pipeline(session, config, instrument=writer)
        if rank == 0:
            with (
                open_progress(steps=config.train.steps, log_every=config.train.log_every) as progress,
                MetricsLog(folder, tensorboard=config.train.tensorboard) as metrics,
            ):
                _announce(progress, session, folder)
                history = _Loop(session, config, pipeline).run(progress, metrics)
        else:
            history = _Loop(session, config, pipeline).run(None, None)
        again = read_clock(session.place.mesh)
        writer.measured_again(ClockOffset(again.offset_ns, again.uncertainty_ns, again.at_ns))
        pipeline.close()
    tokens = session.resolved.recipe.global_batch * config.data.sequence_length
    return history.result(run_dir=run_dir, tokens_per_step=tokens, resolved=session.resolved)


class _Loop:
    def __init__(self, session: Session, config: RunConfig, pipeline: Pipeline) -> None:
        self._session = session
        self._config = config
        self._pipeline = pipeline
        self._optimizer = MasterOptimizer(pipeline.weights(), config=config.optimizer)
        self._batch = session.resolved.recipe.global_batch
        self._heldout = _heldout_order(session, config)
        self._history = History()

    def run(self, progress: TrainProgress | None, metrics: MetricsLog | None) -> History:
        train, history = self._config.train, self._history
        self._evaluate(progress, metrics, step=0)
        for step in range(train.steps):
            started = time.perf_counter_ns()
            loss, norm, rate = self._step(step)
            self._pipeline.end_step()
            history.step_ns.append(time.perf_counter_ns() - started)
            history.losses.append(loss)
            bubble = history.account(
                self._pipeline.last_spans(), offset_ns=self._pipeline.clock_offset_ns()[0], mesh=self._pipeline.mesh
            )
            if progress is not None and metrics is not None:
                values = {
                    "loss": loss,
                    "grad_norm": norm,
                    "lr": rate,
                    "tokens_per_s": self._tokens * 1e9 / history.step_ns[-1],
                    "step_ns": history.step_ns[-1],
                    "bubble_fraction": bubble,
                }
                metrics.log(values, step=step + 1)
                progress.log(values, step=step + 1)
                if not math.isfinite(norm):
                    progress.say(f"step {step + 1}: the gradient norm is {norm}; no rank updated its weights")
            if train.eval_every and ((step + 1) % train.eval_every == 0 or step + 1 == train.steps):
                self._evaluate(progress, metrics, step=step + 1)
        return history

    @property
    def _tokens(self) -> int:
        return self._batch * self._config.data.sequence_length

    def _step(self, step: int) -> tuple[float, float, float]:
        """(loss, gradient norm, learning rate) of one optimizer step."""
        pipeline, optimizer = self._pipeline, self._config.optimizer
        with pipeline.flush(Activity.DATA):
            batch = tensors(self._session.order.draw(step * self._batch, count=self._batch))
        loss = pipeline.step(batch)
        norm = pipeline.clip_grad_norm(optimizer.clip_norm)
        rate = learning_rate(step, config=optimizer, steps=self._config.train.steps)
        if math.isfinite(norm):
            with pipeline.flush(Activity.OPTIMIZER):
                self._optimizer.step(pipeline.gradients(), lr=rate)
        pipeline.zero_grad()
        return loss, norm, rate

    def _evaluate(self, progress: TrainProgress | None, metrics: MetricsLog | None, *, step: int) -> None:
        """Held-out loss, over the same held-out sequences each time."""
        if self._heldout is None or not self._config.train.eval_every:
            return
        recipe = self._session.resolved.recipe
        wanted = self._config.train.eval_batches * self._batch
        count = min(wanted, self._heldout.num_samples) // recipe.microbatch_size * recipe.microbatch_size
        batch = tensors(self._heldout.draw(0, count=count))
        loss = self._pipeline.evaluate(batch, num_microbatches=count // recipe.microbatch_size)
        self._history.eval_losses.append(loss)
        if progress is not None and metrics is not None:
            metrics.log({"eval_loss": loss}, step=step)
            progress.say(f"step {step}: held-out loss {loss:.4f} over {count} sequences")


def _heldout_order(session: Session, config: RunConfig) -> SampleOrder | None:
    if not len(session.corpus.heldout):
        return None
    return SampleOrder(
        session.corpus.heldout,
        sequence_length=config.data.sequence_length,
        seed=config.data.seed,
        vocab_size=session.corpus.vocab_size,
    )


def _announce(progress: TrainProgress, session: Session, folder: Path) -> None:
    """What was chosen and why, before the first step."""
    progress.say(f"run    {folder}")
    progress.say(f"model  {session.model.description}")
    progress.say(f"data   {session.corpus.description}")
    progress.say(f"       fingerprint {session.corpus.fingerprint[:16]}")
    for reason in session.resolved.reasons:
        progress.say(f"       {reason}")
    predicted = session.resolved.predicted
    if predicted is not None:
        progress.say(
            f"plan   {session.resolved.schedule.name}: {predicted.step_ns / 1e6:.1f} ms a step and "
            f"{predicted.bubble.bubble_fraction:.1%} bubble predicted"
        )


def _write_run_files(folder: Path, config: RunConfig, session: Session) -> None:
    """The run folder says what ran: the resolved configuration, what was measured, what was decided."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(dump_run(config), encoding="utf-8")
    write_costs(
        folder / "profile.json",
        session.costs,
        device=session.place.device.torch_device.type,
        dtype=config.model.dtype,
        sequence_length=config.data.sequence_length,
        microbatch_size=session.resolved.recipe.microbatch_size,
    )
    predicted = session.resolved.predicted
    write_recipe(
        folder / "plan.json", session.resolved.recipe, stage_costs=predicted.stage_costs if predicted else None
    )
