"""What one rank does for `memory.py`: two systems, each built and stepped while its tensors are counted."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from peers.torch_pipelining import TorchPipeline
from rounds import group
from tensor_bytes import TensorBytes
from torch import Tensor, nn

from fullbore.models.layered import Objective
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker

__all__ = ["Footprint", "MemoryCell", "measure_footprints"]

_WIDTH = 256
_STEPS = 2


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """``rows`` of a microbatch: a boundary tensor is [rows, 256] in float32."""

    family: str
    num_ranks: int
    num_microbatches: int
    rows: int

    @property
    def num_chunks(self) -> int:
        return 1 if self.family == "1f1b" else 2

    @property
    def boundary_bytes(self) -> int:
        return 4 * self.rows * _WIDTH


@dataclass(frozen=True, slots=True)
class Footprint:
    """One system on one rank, in its second step; what was there before it was built is not counted."""

    cell: MemoryCell
    system: str
    rank: int
    peak_bytes: int
    kept_bytes: int
    """Between steps: weights, and buffers that stay."""

    peak_boundary_tensors: int
    """The most tensors of a boundary's size at once, whatever they are for."""

    kept_boundary_tensors: int


def measure_footprints(worker: Worker, cells: Sequence[MemoryCell]) -> list[Footprint]:
    torch.set_num_threads(1)
    mesh = group(worker)
    found = []
    for cell in cells:
        shape = (cell.num_microbatches * cell.rows, _WIDTH)
        inputs, targets = torch.zeros(shape), torch.zeros(shape)
        for system, build in (("fullbore", _fullbore), ("torch", _torch)):
            gc.collect()
            with TensorBytes(watched_bytes=cell.boundary_bytes, beside=(inputs, targets)) as held:
                step, close = build(cell, mesh)
                for _ in range(_STEPS):
                    mesh.barrier()
                    gc.collect()  # what the step before left in cycles is no buffer that stays
                    held.restart()
                    step(inputs, targets)
                mesh.barrier()
                gc.collect()
                found.append(
                    Footprint(cell, system, mesh.rank, held.most, held.now, held.watched_most, held.watched_now)
                )
            close()
            del step, close
    mesh.close()
    return found


Step = Callable[[Tensor, Tensor], object]


def _layers(count: int) -> list[nn.Module]:
    return [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(count)]


def _fullbore(cell: MemoryCell, mesh: Mesh) -> tuple[Step, Callable[[], None]]:
    with torch.device("meta"):  # only this rank's stages get real weights
        model = nn.Sequential(*_layers(cell.num_ranks * cell.num_chunks))
    pipeline = Pipeline(
        model,
        num_microbatches=cell.num_microbatches,
        schedule=cell.family,
        num_chunks=None if cell.num_chunks == 1 else cell.num_chunks,
        objective=Objective(
            loss_sum=lambda output, microbatch: _loss(output, microbatch["targets"]),
            count=lambda microbatch: microbatch["targets"].numel(),
        ),
        device=CpuDevice(),
        mesh=mesh,
    )
    return (lambda inputs, targets: pipeline.step({"inputs": inputs, "targets": targets})), pipeline.release


def _torch(cell: MemoryCell, mesh: Mesh) -> tuple[Step, Callable[[], None]]:
    pipeline = TorchPipeline(
        _layers(cell.num_chunks),
        rank=mesh.rank,
        num_ranks=cell.num_ranks,
        num_microbatches=cell.num_microbatches,
        loss=_loss,
    )
    return pipeline.step, lambda: None


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).sum()
