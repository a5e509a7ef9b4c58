"""Assembly: all that a rank's pipeline is made of, built in the one order in which its ranks have to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from fullbore.ids import Rank
from fullbore.ir.lower import lower
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import LayeredModel, Objective
from fullbore.runtime.agreement import all_or_none
from fullbore.runtime.device import Device
from fullbore.runtime.evaluation import Evaluation
from fullbore.runtime.executor import Executor
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.intake import Intake
from fullbore.runtime.local_stages import LocalStages, say_what_stays_whole
from fullbore.runtime.loss_scale import LossScaler
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.mirrored import BufferWatch, require_mirrorable, share_buffers
from fullbore.runtime.outputs import OutputTap
from fullbore.runtime.processes.board import START_UP_FACTOR, ProgressBoard
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.step_guard import StepGuard
from fullbore.runtime.tied import TiedGradients, holders_of, require_no_max_norm
from fullbore.runtime.trainable import Trainable
from fullbore.runtime.training import Training
from fullbore.runtime.transport.torch_transport import TorchTransport
from fullbore.timeline.instrument import Fanout, Instrument, SpanList

__all__ = ["Assembly", "assembled"]


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that a step needs."""

    spans: SpanList
    """Of the last step."""

    recorder: StepRecorder
    stages: LocalStages
    weights: Mapping[str, nn.Parameter]
    """This rank's, under their full names in the whole model."""

    loss_scaler: LossScaler | None
    """Where any weight of any rank is float16."""

    gradients: GradientStore
    guard: StepGuard
    tied: TiedGradients
    intake: Intake
    tap: OutputTap
    transport: TorchTransport
    executor: Executor
    training: Training
    evaluation: Evaluation


def assembled(
    model: LayeredModel,
    *,
    schedule: Schedule,
    edges: Sequence[int],
    objective: Objective,
    mesh: Mesh,
    device: Device,
    seed: int,
    recompute: Sequence[str],
    compile: bool,
    timeout_s: float,
    told: Instrument | None,
    board: ProgressBoard | None,
    undo: ExitStack,
) -> Assembly:
    """Build it. Every rank calls this; a rank that refuses its part is heard by all.

    Args:
        edges: the first layer of every stage of a stream, and the number of layers at the end.
        undo: gets what gives the model's modules back as they came.

    Raises:
        ConfigError, ModelError, ScheduleError: this rank's part cannot be built, or another's.
    """
    lane_timeout_s = START_UP_FACTOR * timeout_s if compile else timeout_s  # of what cannot be told anew for each step
    spans = SpanList()
    recorder = StepRecorder(device, spans if told is None else Fanout((spans, told)), rank=mesh.rank, board=board)

    def local_stages() -> LocalStages:
        built = LocalStages(
            model,
            schedule=schedule,
            edges=edges,
            rank=Rank(mesh.rank),
            seed=seed,
            device=device,
            recompute=recompute,
            compile=compile,
            recorder=recorder,
        )
        undo.callback(built.release)
        require_mirrorable(built.modules, schedule=schedule)
        return built

    stages = all_or_none(local_stages, mesh=mesh)
    share_buffers(stages.buffers, schedule=schedule, mesh=mesh)
    say_what_stays_whole(schedule, stages.whole, mesh=mesh)
    weights = stages.weights
    half = any(weight.dtype == torch.float16 for weight in weights.values())
    loss_scaler = LossScaler() if mesh.max([float(half)])[0] else None
    gradients = GradientStore(weights, scaled=loss_scaler is not None)
    undo.callback(gradients.close)
    tied = TiedGradients(holders_of(stages.weights_of, mesh=mesh), mesh=mesh, timeout_s=lane_timeout_s)
    all_or_none(lambda: require_no_max_norm(stages.modules, weights=weights, shared=tied.names), mesh=mesh)
    tied.make_equal(weights)
    tap = OutputTap(objective)
    engines = stages.training_engines(tap.objective)
    program = lower(schedule)
    transport = mesh.together(
        lambda: TorchTransport(program.lanes, rank=mesh.rank, ranks=mesh.ranks, device=device, timeout_s=lane_timeout_s)
    )
    executor = Executor(
        program,
        rank=mesh.rank,
        engines=engines,
        transport=transport,
        boundary_of=stages.boundary_of,
        device=device.torch_device,
        recorder=recorder,
        board=board,
        timeout_s=timeout_s,
    )
    buffers = BufferWatch(stages.modules, schedule=schedule, mesh=mesh)
    guard = StepGuard(stages.modules, scaler=loss_scaler)
    return Assembly(
        spans=spans,
        recorder=recorder,
        stages=stages,
        weights=weights,
        loss_scaler=loss_scaler,
        gradients=gradients,
        guard=guard,
        tied=tied,
        intake=Intake(
            schedule=schedule,
            objective=objective,
            stages=stages,
            trainable=Trainable(weights, modules=stages.modules),
            tap=tap,
            mesh=mesh,
        ),
        tap=tap,
        transport=transport,
        executor=executor,
        training=Training(
            engines=engines,
            executor=executor,
            gradients=gradients,
            weights=weights,
            tied=tied,
            buffers=buffers,
            guard=guard,
            loss_scaler=loss_scaler,
            tap=tap,
            recorder=recorder,
            device=device.torch_device,
        ),
        evaluation=Evaluation(
            stages.evaluation_engines(tap.objective),
            placement=schedule.placement,
            rank=mesh.rank,
            transport=transport,
            boundary_of=stages.boundary_of,
            buffers=buffers,
            tap=tap,
            device=device,
            board=board,
        ),
    )
