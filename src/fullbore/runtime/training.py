"""Training: forward and backward of one whole batch through this rank's stages, round after round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fullbore.ids import StageIndex
from fullbore.models.auxiliary import num_samples
from fullbore.models.layered import Microbatch
from fullbore.runtime.batch import on_device
from fullbore.runtime.eager import EagerEngine
from fullbore.runtime.executor import Executor
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.loss_scale import LossScaler
from fullbore.runtime.mirrored import BufferWatch
from fullbore.runtime.outputs import OutputTap
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.step_guard import StepGuard
from fullbore.runtime.tied import TiedGradients
from fullbore.timeline.span import Activity

__all__ = ["Training"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One rank's part of it."""

    engines: Mapping[StageIndex, EagerEngine]
    executor: Executor
    gradients: GradientStore
    tied: TiedGradients
    buffers: BufferWatch
    guard: StepGuard
    loss_scaler: LossScaler | None
    tap: OutputTap
    recorder: StepRecorder
    device: torch.device
    weights: Mapping[str, nn.Parameter]

    def run(self, microbatches: Sequence[Microbatch], *, count: int, per_round: int, timeout_s: float) -> None:
        """Add the gradients of the batch's mean loss to those already there. Every rank calls this.

        Args:
            count: items that the loss counts in the whole batch.
            per_round: m; the schedule runs once for each so many microbatches.
            timeout_s: how long it waits for another rank.

        Raises:
            ModelError: a forward has written into what several ranks hold.
            RankFailed, NeighborLost, TransferStalled: as `Executor.run`.
        """
        self.executor.timeout_s = timeout_s
        self.buffers.begin()
        self.tied.begin(self.gradients, weights=self.weights)
        self.guard.begin()
        scale = 1.0 if self.loss_scaler is None else self.loss_scaler.scale
        self.gradients.loss_scale = scale
        rows = sum(num_samples(microbatch) for microbatch in microbatches)
        for engine in self.engines.values():
            engine.begin(count, num_samples=rows, step=self.recorder.step, loss_scale=scale)
        for first in range(0, len(microbatches), per_round):
            part = on_device(microbatches[first : first + per_round], self.device)
            self.tap.expect(part)
            for engine in self.engines.values():
                engine.first_microbatch = first
            self.executor.run(part, first_microbatch=first)
        with self.recorder.flush(Activity.TIED_GRADIENTS):
            self.tied.reduce(self.gradients, weights=self.weights)
            self.buffers.require_kept()

    @property
    def loss_sums(self) -> list[Tensor | None]:
        """Of the last batch, of each stage here: only the last of a stream has one."""
        return [engine.loss_sum for engine in self.engines.values()]

    @property
    def auxiliary_losses(self) -> list[Tensor | None]:
        """The same; any stage may have one."""
        return [engine.auxiliary_loss for engine in self.engines.values()]
