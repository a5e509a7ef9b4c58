"""Evaluation: forward only, through the same stages and lanes, at any time and with any number of microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fullbore.ids import StageIndex
from fullbore.ir.forward_only import forward_only
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.models.layered import Microbatch
from fullbore.runtime.batch import on_device
from fullbore.runtime.device import Device
from fullbore.runtime.eager import EvaluationEngine
from fullbore.runtime.executor import BoundaryOf, Executor
from fullbore.runtime.mirrored import BufferWatch
from fullbore.runtime.outputs import OutputTap
from fullbore.runtime.processes.board import ProgressBoard, evaluation_name
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.transport import Transport
from fullbore.timeline.instrument import SpanList

__all__ = ["Evaluation"]


class Evaluation:
    """One rank's part of it. A program is lowered once for each number of microbatches and kept."""

    def __init__(
        self,
        engines: Mapping[StageIndex, EvaluationEngine],
        *,
        placement: Placement,
        rank: int,
        transport: Transport,
        boundary_of: BoundaryOf,
        buffers: BufferWatch,
        tap: OutputTap,
        device: Device,
        board: ProgressBoard | None,
    ) -> None:
        self._engines = engines
        self._placement = placement
        self._rank = rank
        self._transport = transport
        self._boundary_of = boundary_of
        self._buffers = buffers
        self._tap = tap
        self._device = device
        self._board = board
        self._recorder = StepRecorder(device, SpanList(), rank=rank, board=board, name=evaluation_name)
        self._executors: dict[int, Executor] = {}

    def prepare(self, *, step: int) -> None:
        """An evaluation before step ``step`` begins: its batch is looked at."""
        self._recorder.step = step
        self._recorder.tell("preparing the batch")

    def run(self, microbatches: Sequence[Microbatch], *, step: int, timeout_s: float) -> Tensor | None:
        """The sum of the losses on the rank of a stream's last stage, None elsewhere. ``step`` is for messages.

        Raises:
            ModelError: a forward has written into a buffer that several ranks hold.
            RankFailed, NeighborLost, TransferStalled: as `Executor.run`.
        """
        self._recorder.step = step
        executor = self._executor(len(microbatches), timeout_s)
        given = on_device(microbatches, self._device.torch_device)
        self._tap.expect(given)
        self._buffers.begin()
        try:
            for engine in self._engines.values():
                engine.begin()
            executor.run(given)
        finally:
            for engine in self._engines.values():
                engine.end()
            self._recorder.discard()
        self._buffers.require_kept()
        return next((engine.loss_sum for engine in self._engines.values() if engine.loss_sum is not None), None)

    def _executor(self, num_microbatches: int, timeout_s: float) -> Executor:
        if num_microbatches not in self._executors:
            self._executors[num_microbatches] = Executor(
                lower(forward_only(self._placement, num_microbatches=num_microbatches)),
                rank=self._rank,
                engines=self._engines,
                transport=self._transport,
                boundary_of=self._boundary_of,
                device=self._device.torch_device,
                recorder=self._recorder,
                board=self._board,
                timeout_s=timeout_s,
            )
        self._executors[num_microbatches].timeout_s = timeout_s
        return self._executors[num_microbatches]
