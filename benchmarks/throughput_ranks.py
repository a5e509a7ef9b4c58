"""What one rank does for `throughput.py`: every system with its own copy of the same weights, their steps in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from decoder import DecoderShape, decoder, token_losses
from peers.hand_written import HandWritten
from peers.torch_pipelining import TorchPipeline
from rounds import group, timed
from torch import Tensor, nn

from fullbore.costs.layer import LayerCost
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Objective
from fullbore.models.load import layered
from fullbore.partition.best import best_partition
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker
from fullbore.schedules.registry import get
from fullbore.session.session import Place, measure

__all__ = ["Batch", "Throughput", "measure_systems", "measured_layers", "trained"]

_LEARNING_RATE = 1e-3
_CHECKED = 3
"""Steps after which all systems must have the same loss; they are not timed."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """What rank 0 saw of one system."""

    system: str
    layers_per_stage: tuple[int, ...]
    losses: tuple[float, ...]
    """Of the checked steps."""

    step_ns: list[int] = field(default_factory=list)


Step = Callable[[], float]
"""One optimizer step on this rank; the loss of the batch on at least one rank, 0 elsewhere."""


def measure_systems(
    worker: Worker, shape: DecoderShape, tokens: int, microbatches: int, rounds: int, systems: Sequence[str]
) -> list[Throughput]:
    torch.set_num_threads(1)
    mesh = group(worker)
    batch = Batch.draw(shape, tokens=tokens, microbatches=microbatches, mesh=mesh)
    found: list[Throughput] = []
    steps: dict[str, Step] = {}
    for name in systems:
        steps[name], layers = _SYSTEMS[name](batch)
        losses = tuple(mesh.max([steps[name]()])[0] for _ in range(_CHECKED))
        found.append(Throughput(name, tuple(layers), losses))
    for index in range(rounds):
        for row in Random(index).sample(found, len(found)):
            row.step_ns.append(timed(steps[row.system], mesh=mesh).step_ns)
    mesh.barrier()
    mesh.close()
    return found


@dataclass(frozen=True, slots=True)
class Batch:
    """``inputs`` and ``labels`` are [microbatch, token]; a microbatch is one sample."""

    inputs: Tensor
    labels: Tensor
    shape: DecoderShape
    mesh: Mesh

    @classmethod
    def draw(cls, shape: DecoderShape, *, tokens: int, microbatches: int, mesh: Mesh) -> Batch:
        """The same numbers on every rank."""
        source = torch.Generator().manual_seed(11)
        text = torch.randint(shape.vocabulary, (microbatches, tokens + 1), generator=source)
        return cls(text[:, :-1].contiguous(), text[:, 1:].contiguous(), shape, mesh)

    @property
    def microbatches(self) -> int:
        return len(self.inputs)

    @property
    def equal(self) -> list[int]:
        """The embedding and half of the blocks; the other half and the head."""
        half = self.shape.blocks // 2 + 1
        return [half, self.shape.blocks + 2 - half]

    def layers(self) -> list[nn.Module]:
        return decoder(self.shape, seed=3)

    def stage(self) -> nn.Sequential:
        """This rank's layers at the equal cut."""
        first = sum(self.equal[: self.mesh.rank])
        return nn.Sequential(*self.layers()[first : first + self.equal[self.mesh.rank]])

    def mean(self, logits: Tensor, labels: Tensor) -> Tensor:
        """A microbatch's share of the mean over the batch."""
        return token_losses(logits, labels) / self.labels.numel()


def _objective() -> Objective:
    return Objective(
        loss_sum=lambda logits, given: token_losses(logits, given["labels"]),
        count=lambda given: given["labels"].numel(),
    )


def trained(
    batch: Batch, *, layers_per_stage: Sequence[int], schedule: str | Schedule = "1f1b"
) -> tuple[Pipeline, Step]:
    """The decoder under fullbore, and an optimizer step of it."""
    pipeline = Pipeline(
        nn.Sequential(*batch.layers()),
        num_microbatches=batch.microbatches,
        schedule=schedule,
        objective=_objective(),
        layers_per_stage=layers_per_stage,
        device=CpuDevice(),
        mesh=batch.mesh,
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=_LEARNING_RATE)
    given = {"inputs": batch.inputs, "labels": batch.labels}

    def step() -> float:
        loss = pipeline.step(given)
        optimizer.step()
        pipeline.zero_grad()
        return loss

    return pipeline, step


def measured_layers(batch: Batch) -> tuple[LayerCost, ...]:
    """What fullbore's profile says, with all ranks at it at once."""
    model = layered(nn.Sequential(*batch.layers()), objective=_objective())
    sample = {"inputs": batch.inputs[:1], "labels": batch.labels[:1]}
    return measure(model, sample, place=Place(CpuDevice(), batch.mesh, None), seed=0)


def _fullbore_equal(batch: Batch) -> tuple[Step, Sequence[int]]:
    return trained(batch, layers_per_stage=batch.equal)[1], batch.equal


def _fullbore_measured(batch: Batch) -> tuple[Step, Sequence[int]]:
    """The cut that fullbore finds from what it has measured on all ranks at once."""
    schedule = get("1f1b").build(batch.mesh.num_ranks, num_microbatches=batch.microbatches)
    cut = best_partition(measured_layers(batch), schedule=schedule).layers_per_stage
    return trained(batch, layers_per_stage=cut)[1], cut


def _torch(batch: Batch) -> tuple[Step, Sequence[int]]:
    module = batch.stage()
    pipeline = TorchPipeline(
        [module],
        rank=batch.mesh.rank,
        num_ranks=batch.mesh.num_ranks,
        num_microbatches=batch.microbatches,
        loss=batch.mean,
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)
    return _optimized(lambda: pipeline.step(batch.inputs, batch.labels), optimizer), batch.equal


def _hand_written(batch: Batch) -> tuple[Step, Sequence[int]]:
    module = batch.stage()
    loop = HandWritten(
        module,
        rank=batch.mesh.rank,
        num_ranks=batch.mesh.num_ranks,
        shape=(1, batch.inputs.shape[1], batch.shape.width),
        loss=batch.mean,
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)
    inputs, labels = batch.inputs.split(1), batch.labels.split(1)
    return _optimized(lambda: loop.step(inputs, labels), optimizer), batch.equal


def _one_process(batch: Batch) -> tuple[Step, Sequence[int]]:
    """All layers on rank 0, the same microbatches in the same order; the other ranks look on."""
    if batch.mesh.rank:
        return (lambda: 0.0), [batch.shape.blocks + 2]
    module = nn.Sequential(*batch.layers())
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)

    def run() -> list[Tensor]:
        losses = []
        for inputs, labels in zip(batch.inputs.split(1), batch.labels.split(1), strict=True):
            loss = batch.mean(module(inputs), labels)
            loss.backward()
            losses.append(loss.detach())
        return losses

    return _optimized(run, optimizer), [batch.shape.blocks + 2]


def _deepspeed(batch: Batch) -> tuple[Step, Sequence[int]]:
    from peers.deepspeed_engine import DeepSpeedPipeline

    pipeline = DeepSpeedPipeline(
        batch.layers(),
        num_ranks=batch.mesh.num_ranks,
        num_microbatches=batch.microbatches,
        loss=lambda logits, labels: token_losses(logits, labels) / labels.numel(),
        learning_rate=_LEARNING_RATE,
    )
    inputs, labels = batch.inputs.split(1), batch.labels.split(1)
    return (lambda: pipeline.step(inputs, labels)), pipeline.layers_per_stage


def _optimized(run: Callable[[], Sequence[Tensor]], optimizer: torch.optim.Optimizer) -> Step:
    """``run`` gives the losses of the microbatches on the last rank; every rank gets the sum, as fullbore's does."""

    def step() -> float:
        losses = run()
        optimizer.step()
        optimizer.zero_grad()
        return float(sum(loss.detach() for loss in losses))

    return step


_SYSTEMS: Mapping[str, Callable[[Batch], tuple[Step, Sequence[int]]]] = {
    "one process": _one_process,
    "hand-written loop": _hand_written,
    "torch.distributed.pipelining": _torch,
    "DeepSpeed": _deepspeed,
    "fullbore, equal cut": _fullbore_equal,
    "fullbore, measured cut": _fullbore_measured,
}
