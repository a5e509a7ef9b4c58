"""Pipeline: a model cut over ranks, ready for a training loop. What `fullbore.Pipeline` is.

    pipeline = fullbore.Pipeline(model, num_microbatches=8)
    optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
    for batch in batches:                      # every rank reads the same batch
        loss = pipeline.step(batch)            # the loss over the whole batch, on every rank
        pipeline.clip_grad_norm(1.0)           # over all stages
        if pipeline.finite:                    # the same on every rank
            optimizer.step()
        pipeline.zero_grad()

Started by torchrun, each process holds one pipeline rank; started alone, it is a pipeline of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor, nn

from fullbore.errors import ConfigError, InputError
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Objective
from fullbore.models.load import AnyModel, layered
from fullbore.runtime.agreement import all_or_none, require_same
from fullbore.runtime.argument_kinds import require_kinds, required_device, required_layers
from fullbore.runtime.arguments import mesh_of_world, order_and_cut, required_objective
from fullbore.runtime.assembly import assembled
from fullbore.runtime.batch import Batch
from fullbore.runtime.clipping import clip_global_norm, require_max_norm
from fullbore.runtime.common_timeline import common_timeline
from fullbore.runtime.condition import Condition
from fullbore.runtime.device import Device
from fullbore.runtime.global_loss import global_loss
from fullbore.runtime.loss_scale import LossScaler
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.outputs import Output, shared_outputs
from fullbore.runtime.patience import Patience
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.timeline.instrument import Instrument
from fullbore.timeline.span import Activity, Span, Timeline

__all__ = ["Pipeline"]


class Pipeline:
    """A model's stages on this rank, with everything that runs them.

    Args:
        model: an `nn.Sequential`, a Hugging Face model (causal, encoder-decoder, classifier, with adapters) or its
            config, a module with ``pipeline_layers()``, or a `LayeredModel`. A module on the meta device is
            initialised stage by stage from ``seed``; a module with weights keeps them.
        num_microbatches: m; a batch given to `step` as one mapping is cut into this many slices.
        schedule: a registered name, or a `Schedule` for exactly these ranks and microbatches.
        num_chunks: stages per rank, for a registered name that takes them; its own number by default.
        schedule_options: what else a registered schedule takes, as ``{"group_size": 8}``.
        layers_per_stage: the cut; ``equal`` counts the embedding and the head as layers. Where a schedule runs the
            model in both directions, of the stages of one; the others hold the same layers.
        objective: what is summed and counted; a language model brings its own.
        recompute: layers that run their forward again in the backward instead of keeping activations.
        recompute_ahead: they do so before, while the gradient is on its way, each stage's in one action (R). A
            `Schedule` with such actions is taken as it is.
        compile: compile the layers' own code with `torch.compile`; the first step takes long.
        accumulation: how many rounds of m microbatches one `step` takes.
        seed: of drawn weights and random masks; the same on every rank.
        device: ``auto``, ``cpu`` or ``cuda``, a `torch.device`, or a `Device`.
        timeout_s: how long a rank waits for another before it gives up; five times that in start-up, and in the first
            step and evaluation of compiled layers.
        instrument: told every span; the last step's are always kept for `timeline`.
        board: told what this rank does, for whoever watches it.
        mesh: the ranks, where there is one already; it stays open.

    Raises:
        ConfigError, ModelError, PartitionError, ScheduleError: before anything is computed, and the model's modules
            are as they were.
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        num_microbatches: int,
        schedule: str | Schedule = "1f1b",
        num_chunks: int | None = None,
        schedule_options: Mapping[str, int] | None = None,
        layers_per_stage: Literal["equal"] | Sequence[int] = "equal",
        objective: Objective | None = None,
        recompute: Collection[str] = (),
        recompute_ahead: bool = False,
        compile: bool = False,
        accumulation: int = 1,
        seed: int = 0,
        device: str | torch.device | Device = "auto",
        timeout_s: float = 60.0,
        instrument: Instrument | None = None,
        board: ProgressBoard | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        self._model = layered(model)
        objective = required_objective(objective, self._model)
        require_kinds(num_microbatches=num_microbatches, accumulation=accumulation, compile=compile, seed=seed)
        require_kinds(schedule=schedule, num_chunks=num_chunks, schedule_options=schedule_options)
        require_kinds(recompute_ahead=recompute_ahead)
        require_kinds(timeout_s=timeout_s, instrument=instrument, board=board, mesh=mesh)
        recompute = required_layers(self._model, recompute)
        self._num_microbatches = num_microbatches
        self._accumulation = accumulation
        self._device = required_device(device)
        self._owns_mesh = mesh is None
        self._mesh = mesh if mesh is not None else mesh_of_world(schedule, self._device, timeout_s)
        self._patience = Patience(timeout_s, compiles=compile, mesh=self._mesh, board=board)
        self._condition = Condition()
        with self._leaving_if_refused(), ExitStack() as undo:
            self._mesh.start_up()
            self.schedule, self._edges = all_or_none(
                lambda: order_and_cut(
                    self._model,
                    schedule=schedule,
                    num_ranks=self._mesh.num_ranks,
                    num_microbatches=num_microbatches,
                    num_chunks=num_chunks,
                    options=schedule_options,
                    cut=layers_per_stage,
                    ahead=recompute if recompute_ahead else None,
                ),
                mesh=self._mesh,
            )
            require_same(
                {
                    "layers": self._model.layer_names,
                    "layers_per_stage": self.layers_per_stage,
                    "schedule": self.schedule.orders,
                    "num_microbatches": num_microbatches,
                    "accumulation": accumulation,
                    "recompute": recompute,
                    "compile": compile,
                    "seed": seed,
                },
                mesh=self._mesh,
            )
            self._parts = assembled(
                self._model,
                schedule=self.schedule,
                edges=self._edges,
                objective=objective,
                mesh=self._mesh,
                device=self._device,
                seed=seed,
                recompute=recompute,
                compile=compile,
                timeout_s=timeout_s,
                told=instrument,
                board=board,
                undo=undo,
            )
            self._undo = undo.pop_all()
        weakref.finalize(self, self._undo.close).atexit = False  # dropped unclosed, it gives the modules back too
        self._mesh.begin_steps()

    @contextmanager
    def _leaving_if_refused(self) -> Iterator[None]:
        """A group that was made here is left, so that another pipeline of this process starts from nothing."""
        try:
            yield
        except InputError:
            if self._owns_mesh:
                self._mesh.close()
            raise

    @property
    def rank(self) -> int:
        """This process's place in the pipeline."""
        return self._mesh.rank

    @property
    def num_ranks(self) -> int:
        return self._mesh.num_ranks

    @property
    def mesh(self) -> Mesh:
        return self._mesh

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        return tuple(end - first for first, end in zip(self._edges, self._edges[1:], strict=False))

    @property
    def peak_activations(self) -> int:
        """Most stage-microbatches whose activations this rank has held at once."""
        return self._parts.executor.peak_activations

    @property
    def peak_held_bytes(self) -> int:
        """Most bytes that this rank has kept at once for weight gradients still owed (W of a split backward)."""
        return self._parts.executor.peak_held_bytes

    @property
    def tied_here(self) -> tuple[str, ...]:
        """Weights of which another rank holds a copy too."""
        return self._parts.tied.names

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's weights, for a torch optimizer. A rank without any yields none.

        Raises:
            ConfigError: gradients that are not in ``.grad``: those of weights narrower than float32, which add up in
                float32, and all of a model with float16 weights, whose loss is scaled.
        """
        self._parts.gradients.require_in_place()
        return iter(self._parts.weights.values())

    def weights(self) -> Mapping[str, nn.Parameter]:
        """This rank's weights under their full names in the whole model."""
        return self._parts.weights

    def buffers(self) -> dict[str, Tensor]:
        """This rank's buffers under their full names."""
        return self._parts.stages.buffers

    def modules(self) -> tuple[nn.Module, ...]:
        """This rank's stages, in the order of their numbers."""
        return self._parts.stages.modules

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated gradients, float32 or wider, under the same names."""
        return self._parts.gradients.gradients()

    def owns(self, name: str) -> bool:
        """Is this the rank that counts and stores this weight? (A tied or mirrored one has several holders, one
        owner.)"""
        return self._parts.tied.owns(name)

    def step(self, batch: Batch, *, outputs: Output | None = None) -> float:
        """Forward and backward of the whole batch; the loss over it, the same on every rank.

        Gradients add to those already there.

        Args:
            batch: equal on every rank. One mapping of tensors ``[samples, ...]``, cut in order into
                ``num_microbatches * accumulation`` slices that differ by at most one sample; or a sequence of exactly
                that many mappings, taken as the microbatches: each may have shapes, lengths and samples of its own.
            outputs: what to keep of each microbatch's output beside the loss, for `outputs`.

        Raises:
            ConfigError: the batch does not make that many microbatches, or ranks were given different ones.
            ModelError: the model is held twice, and its forward counts or changes a buffer; or a forward writes
                into a weight that lives on several ranks.
            RankFailed, NeighborLost, TransferStalled: names the rank, its action and the cause. The pipeline cannot go
                on after one.
        """
        if torch.is_inference_mode_enabled():
            raise ConfigError("a step has gradients, and torch.inference_mode() has none; step outside of it")
        parts = self._parts
        parts.recorder.end_step()
        parts.recorder.tell("preparing the batch")
        self._condition.require_ready()
        number = self._num_microbatches * self._accumulation
        microbatches, count = parts.intake.take(batch, number=number, outputs=outputs)
        training = parts.training
        with self._patience.during("step") as timeout_s, self._condition.under_way():
            training.run(microbatches, count=count, per_round=self._num_microbatches, timeout_s=timeout_s)
            with parts.recorder.flush(Activity.LOSS_REDUCE):
                sums, auxiliary = training.loss_sums, training.auxiliary_losses
                loss = global_loss(sums, count=count, auxiliary=auxiliary, mesh=self._mesh)
        parts.guard.saw(loss)
        return loss

    def evaluate(self, batch: Batch, *, num_microbatches: int | None = None, outputs: Output | None = None) -> float:
        """The loss over a batch in evaluation mode, the same on every rank. Touches no gradient and no weight.

        Args:
            batch: as for `step`, of any size.
            num_microbatches: how many a mapping is cut into; as many as in training where absent, or one for each
                sample where there are fewer. A sequence of any length is taken as it is.
            outputs: as for `step`.

        Raises:
            ConfigError, RankFailed, NeighborLost, TransferStalled: as `step`.
        """
        parts = self._parts
        parts.recorder.end_step()
        parts.evaluation.prepare(step=parts.recorder.step)
        self._condition.require_ready()
        microbatches, count = parts.intake.take(batch, number=num_microbatches, outputs=outputs)
        with self._patience.during("evaluate") as timeout_s, self._condition.under_way():
            loss_sum = parts.evaluation.run(microbatches, step=parts.recorder.step, timeout_s=timeout_s)
            return global_loss([loss_sum], count=count, mesh=self._mesh)

    def outputs(self) -> list[Tensor]:
        """What the last `step` or `evaluate` kept with ``outputs=``: one tensor a microbatch, in order, on the CPU.

        They exist on the rank of each stream's last stage and are sent to all only here: every rank calls this
        together. Each call hands out what is there; a second one gives an empty list.

        Raises:
            ConfigError: this pipeline has failed or is closed: the others do not come here.
        """
        self._condition.require_ready()
        return shared_outputs(self._parts.tap.take(), placement=self.schedule.placement, mesh=self._mesh)

    def clip_grad_norm(self, max_norm: float | None, *, norm_type: float = 2.0) -> float:
        """Scale all gradients so that their norm over *all stages* is at most ``max_norm``; return the norm before.

        None only measures. A norm that is not finite leaves the gradients as they are; `finite` says so too.

        Raises:
            ConfigError: ``max_norm`` is not a number of at least 0, or ``norm_type`` neither 2 nor infinity; or this
                pipeline has failed or is closed.
        """
        self._condition.require_ready()
        require_max_norm(max_norm)
        with self._parts.recorder.flush(Activity.GRADIENT_NORM):
            gradients, owns = self._parts.gradients.gradients(), self._parts.tied.owns
            norm = clip_global_norm(gradients, max_norm=max_norm, norm_type=norm_type, owns=owns, mesh=self._mesh)
        self._parts.guard.saw(norm)
        return norm

    @property
    def finite(self) -> bool:
        """Were all losses and norms since the last `zero_grad` finite? The same on every rank. Where not, leave out the
        optimizer's step; `zero_grad` then puts back the running statistics. Gradients are only looked at by
        `clip_grad_norm`, so call it in every step."""
        return self._parts.guard.finite

    @property
    def loss_scaler(self) -> LossScaler | None:
        """Of a model with float16 weights; None for any other."""
        return self._parts.loss_scaler

    def zero_grad(self) -> None:
        """Forget the gradients. Ends an optimizer step: the loss scale follows what was `finite`."""
        self._parts.gradients.clear()
        self._parts.guard.end()

    def flush(self, activity: Activity) -> AbstractContextManager[None]:
        """Time work between steps (optimizer, data) as a span of this rank's timeline."""
        return self._parts.recorder.flush(activity)

    def end_step(self) -> None:
        """Hand the finished step's spans to the instrument now. Otherwise the next `step` does it."""
        self._parts.recorder.end_step()

    def last_spans(self) -> tuple[Span, ...]:
        """This rank's spans of the last finished step, on its own clock."""
        self._parts.recorder.end_step()
        return self._parts.spans.last

    def timeline(self) -> Timeline:
        """The last step of all ranks on rank 0's clock, from 0. Every rank calls this together.

        Raises:
            ConfigError: this pipeline has failed or is closed: the others do not come here.
        """
        self._condition.require_ready()
        return common_timeline(self.last_spans(), mesh=self._mesh)

    def release(self) -> None:
        """Let go of communicators, hooks and threads, and stay in the group: another pipeline may follow.

        All ranks call it together. After a failure the lanes are left to the end of the process: the others may still
        be in the middle of a step.
        """
        if self._condition.is_closed:
            return
        self._condition.close()
        self._undo.close()
        if self._condition.is_broken:
            return
        self._parts.recorder.end_step()
        self._mesh.barrier()  # nobody closes a lane that another still reads from
        self._parts.transport.close()
        self._parts.tied.close()

    def close(self) -> None:
        """Let go of everything; leave the process group if this pipeline made it."""
        self.release()
        if self._owns_mesh and not self._condition.is_broken:
            self._mesh.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._condition.close()
            self._undo.close()  # the others may not be on their way here, so nothing is done together
