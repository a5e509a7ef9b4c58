"""The training loop of one rank: draw, step, clip, update, evaluate, record."""

from __future__ import annotations

import time
from pathlib import Path

from fullbore.config.run import RunConfig
from fullbore.costs.layer import write_costs
from fullbore.data.batches import Samples
from fullbore.errors import DataError
from fullbore.ir.schedule_file import write_schedule_file
from fullbore.labels import IGNORED_LABEL
from fullbore.plan.cost_uses import CostUse
from fullbore.plan.recipe_file import write_recipe
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.board import evaluation_name
from fullbore.runtime.processes.launch import Worker
from fullbore.session.session import Session, build_pipeline, microbatches, open_session, require_training
from fullbore.timeline.span import Activity
from fullbore.trace.writer import TraceWriter
from fullbore.train.history import History
from fullbore.train.learning_rate import learning_rate
from fullbore.train.metrics import Logger, MetricsLog
from fullbore.train.progress import Silence, TrainProgress, open_progress
from fullbore.train.result import TrainResult

__all__ = ["train_rank"]


def train_rank(worker: Worker | None, config: RunConfig, run_dir: str) -> TrainResult | None:
    """Train as configured; every rank runs this. The result on rank 0, None elsewhere.

    Raises:
        InputError: the configuration cannot be run; the same on every rank.
        RankFailed: this rank or a neighbour failed.
    """
    session = open_session(worker, config, costs_for=(CostUse.PREDICTION, CostUse.SLOW_STAGE))
    require_training(session)
    folder = Path(session.place.mesh.gather(run_dir)[0])
    rank = session.place.mesh.rank
    session.place.tell("writing into the run folder")
    if rank == 0:
        _write_run_files(folder, config, session)
    schedule = session.resolved.schedule
    with TraceWriter(
        folder,
        rank=rank,
        placement=schedule.placement,
        schedule=schedule.name,
        clock=session.place.mesh.clock,
    ) as writer:
        pipeline = build_pipeline(session, config, instrument=writer)
        steps, log_every = config.train.steps, config.train.log_every
        with (
            open_progress(steps=steps, log_every=log_every) if rank == 0 else Silence() as progress,
            MetricsLog(folder, tensorboard=config.train.tensorboard) if rank == 0 else Silence() as metrics,
        ):
            _announce(progress, session, folder)
            history = _Loop(session, config, pipeline, progress, metrics).run()
        session.place.tell("closing")
        writer.measured_again(session.place.mesh.measure_clock())
        problems = session.place.mesh.gather(writer.problem)
        pipeline.close()
        session.place.mesh.close()
    if rank != 0:
        return None
    return history.result(
        run_dir=str(folder),
        resolved=session.resolved,
        problems=problems,
        costs=session.costs,
    )


class _Loop:
    def __init__(
        self, session: Session, config: RunConfig, pipeline: Pipeline, progress: TrainProgress, metrics: Logger
    ) -> None:
        self._session = session
        self._config = config
        self._pipeline = pipeline
        self._progress = progress
        self._metrics = metrics
        self._optimizer = MasterOptimizer(pipeline.weights(), config=config.optimizer)
        recipe = session.resolved.recipe
        self._batch = recipe.global_batch
        self._pieces = recipe.microbatches * recipe.accumulation
        self._heldout = _heldout_order(session, config)
        self._history = History()

    def run(self) -> History:
        train, history = self._config.train, self._history
        self._evaluate(0)
        for step in range(1, train.steps + 1):
            started = time.perf_counter_ns()
            values = self._step(step)
            spans = self._pipeline.last_spans()
            self._pipeline.mesh.barrier()  # a step is over when every rank has updated
            history.step_ns.append(time.perf_counter_ns() - started)
            bubble = history.account(spans, num_ranks=self._pipeline.num_ranks, mesh=self._pipeline.mesh)
            if bubble is not None:
                values["bubble_fraction"] = bubble
            history.losses.append(values["loss"])
            values["step_ns"] = history.step_ns[-1]
            values["tokens_per_s"] = history.tokens[-1] * 1e9 / history.step_ns[-1]
            self._metrics.log(values, step=step)
            self._progress.log(values, step=step)
            history.skipped.check(values, step=step)
            if train.eval_every and (step % train.eval_every == 0 or step == train.steps):
                self._evaluate(step)
        return history

    def _step(self, step: int) -> dict[str, float]:
        """One optimizer step, counted from 1. A gradient that is not finite anywhere updates no rank."""
        pipeline, optimizer = self._pipeline, self._config.optimizer
        with pipeline.flush(Activity.DATA):
            batch = microbatches(
                self._session.order, (step - 1) * self._batch, count=self._batch, num_microbatches=self._pieces
            )
        loss = pipeline.step(batch)
        norm = pipeline.clip_grad_norm(optimizer.clip_norm)
        rate = learning_rate(step - 1, config=optimizer, steps=self._config.train.steps)
        values = {"loss": loss, "grad_norm": norm, "lr": rate}
        scale = 1.0
        if pipeline.loss_scaler is not None:
            scale = values["loss_scale"] = pipeline.loss_scaler.scale
        if pipeline.finite:
            with pipeline.flush(Activity.OPTIMIZER):
                self._optimizer.step(pipeline.gradients(), lr=rate)
        else:
            self._progress.say(f"step {step}: loss {loss:.4g}, gradient norm {norm:.4g}; no rank updated its weights")
        values["skipped_steps"] = self._history.skipped.note(finite=pipeline.finite, loss_scale=scale)
        pipeline.zero_grad()
        self._history.tokens.append(sum(int((one["labels"] != IGNORED_LABEL).sum()) for one in batch))
        return values

    def _evaluate(self, step: int) -> None:
        """Held-out loss, over the same held-out sequences each time."""
        if self._heldout is None or not self._config.train.eval_every:
            return
        self._session.place.tell("drawing the batches", period=evaluation_name(step + 1))
        size = self._session.resolved.recipe.microbatch_size
        wanted = self._config.train.eval_batches * self._batch
        count = min(wanted, self._heldout.num_samples) // size * size
        loss = self._pipeline.evaluate(microbatches(self._heldout, 0, count=count, num_microbatches=count // size))
        self._history.eval_losses.append(loss)
        self._metrics.log({"eval_loss": loss}, step=step)
        kind = "sequences" if self._config.data.documents == "joined" else "documents"
        self._progress.say(f"step {step}: held-out loss {loss:.4f} over {count} {kind}")


def _heldout_order(session: Session, config: RunConfig) -> Samples | None:
    order = session.corpus.heldout_order(config.data)
    if order is None:
        return None
    size = session.resolved.recipe.microbatch_size
    if config.train.eval_every and order.num_samples < size:
        raise DataError(
            f"an evaluation needs a microbatch of {size} held-out sequences (there are {order.num_samples}); raise "
            "data.holdout_fraction, shorten data.sequence_length, or set train.eval_every = 0"
        )
    return order


def _announce(progress: TrainProgress, session: Session, folder: Path) -> None:
    """What was chosen and why, before the first step. Model and data were said when they were opened."""
    progress.say(f"run    {folder}")
    for reason in session.resolved.reasons:
        progress.say(f"       {reason}")
    predicted = session.resolved.predicted
    if predicted is not None:
        progress.say(
            f"plan   {session.resolved.schedule.name}: {predicted.step_ns / 1e6:.1f} ms a step and "
            f"{predicted.bubble.bubble_fraction:.1%} bubble predicted"
        )


def _write_run_files(folder: Path, config: RunConfig, session: Session) -> None:
    """The run folder says what ran: the configuration, which stands there since the folder was taken
    (`fullbore.session.run_folder`), what was measured, what was decided, and the order that came of it."""
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
    write_schedule_file(folder / "schedule.txt", session.resolved.schedule)
