"""What one rank does for `runtime_overhead.py`: both systems in one process group, their steps in turn.

In every round each system runs one step with the same durations, in an order that is drawn anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Protocol, cast

import torch
from emulation import Cell, Durations, Simulated, Stopwatch, wait_precisely
from peers.torch_pipelining import TorchPipeline
from rounds import group, timed
from torch import Tensor, nn

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind, Payload
from fullbore.ir.lower import lower
from fullbore.ir.program import Lane
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Boundary, Microbatch, Parcel, TensorSpec
from fullbore.runtime.device import CpuDevice, Mark
from fullbore.runtime.executor import Executor
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.launch import Worker
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.torch_transport import TorchTransport
from fullbore.timeline.instrument import Fanout, SpanList
from fullbore.trace.writer import TraceWriter

__all__ = [
    *("Fullbore", "Lanes", "Measured", "Steps", "System", "TimedStep"),
    *("measure_cells", "measure_recording", "open_lanes", "timed_step"),
]


@dataclass(frozen=True, slots=True)
class Steps:
    """Of one system in one cell, a number a round."""

    step_ns: list[int] = field(default_factory=list)
    simulated_ns: list[int] = field(default_factory=list)
    overslept_ns: list[int] = field(default_factory=list)
    """The most that the waits of one rank took longer than asked for."""

    cpu_ns: list[int] = field(default_factory=list)
    """Work of the processors during the step, over all threads of all ranks."""

    def add(self, step: TimedStep, *, simulated_ns: int) -> None:
        self.step_ns.append(step.step_ns)
        self.simulated_ns.append(simulated_ns)
        self.overslept_ns.append(step.overslept_ns)
        self.cpu_ns.append(step.cpu_ns)


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of one system in one cell."""

    cell: Cell
    system: str
    steps: Steps = field(default_factory=Steps)


class System(Protocol):
    """A runtime with everything it needs for one cell."""

    simulated: Simulated
    stopwatch: Stopwatch

    def step(self) -> None: ...


def measure_cells(worker: Worker, cells: Sequence[Cell], rounds: int) -> list[Measured]:
    """All cells of this number of ranks. Every rank returns the same steps; rank 0's are read."""
    found: list[Measured] = []
    with open_lanes(worker) as lanes:
        for cell in cells:
            found += _measure(cell, _systems(cell, lanes), mesh=lanes.mesh, rounds=rounds)
    return found


def measure_recording(worker: Worker, cell: Cell, rounds: int, folder: str) -> list[Measured]:
    """One cell with and without a record: marks, spans and the trace file against nothing of it."""
    with open_lanes(worker) as lanes:
        schedule, rank, size = cell.schedule(), lanes.mesh.rank, cell.boundary_bytes
        with TraceWriter(
            Path(folder), rank=rank, placement=schedule.placement, schedule=schedule.name, clock=lanes.mesh.clock
        ) as writer:
            recorder = StepRecorder(CpuDevice(), Fanout((SpanList(), writer)), rank=rank)
            systems: dict[str, System] = {
                "recorded": Fullbore(schedule, lanes, boundary_bytes=size, recorder=recorder),
                "unrecorded": Fullbore(schedule, lanes, boundary_bytes=size, recorder=cast(StepRecorder, Unrecorded())),
            }
            return _measure(cell, systems, mesh=lanes.mesh, rounds=rounds)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The group, and fullbore's lanes in it: the same for all schedules whose messages go the same ways."""

    mesh: Mesh
    transports: dict[tuple[tuple[Rank, Rank, Payload], ...], TorchTransport] = field(default_factory=dict)

    def of(self, lanes: Sequence[Lane]) -> TorchTransport:
        ways = tuple((lane.sender, lane.receiver, lane.payload) for lane in lanes)
        if ways not in self.transports:
            self.transports[ways] = TorchTransport(
                lanes, rank=self.mesh.rank, ranks=self.mesh.ranks, device=CpuDevice(), timeout_s=60.0
            )
        return self.transports[ways]


@contextmanager
def open_lanes(worker: Worker) -> Iterator[Lanes]:
    torch.set_num_threads(1)
    wait_precisely()
    mesh = group(worker)
    lanes = Lanes(mesh)
    yield lanes
    mesh.barrier()
    for transport in lanes.transports.values():
        transport.close()
    mesh.close()


def _measure(cell: Cell, systems: Mapping[str, System], *, mesh: Mesh, rounds: int) -> list[Measured]:
    rows = {name: Measured(cell, name) for name in systems}
    for system in systems.values():
        timed_step(system, {}, mesh)  # buffers, connections and PyTorch's shape inference
    for index in range(rounds):
        durations = cell.durations(index)
        for name in Random(f"{cell}/{index}").sample(sorted(systems), len(systems)):
            step = timed_step(systems[name], durations, mesh)
            rows[name].steps.add(step, simulated_ns=systems[name].simulated.makespan_ns(durations))
    return list(rows.values())


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Of one step: its time, the most that one rank overslept, and the work of all processors."""

    step_ns: int
    overslept_ns: int
    cpu_ns: int


def timed_step(system: System, durations: Durations, mesh: Mesh) -> TimedStep:
    """Every rank calls this together. The numbers are the same on every rank."""
    system.stopwatch.set(durations)
    cpu_ns = 0

    def step() -> None:
        nonlocal cpu_ns
        before = time.process_time_ns()
        system.step()
        cpu_ns = time.process_time_ns() - before

    step_ns = timed(step, mesh=mesh).step_ns
    overslept = mesh.max([float(system.stopwatch.overslept_ns)])[0]
    return TimedStep(step_ns, int(overslept), int(mesh.sum([float(cpu_ns)])[0]))


def _systems(cell: Cell, lanes: Lanes) -> dict[str, System]:
    plain = cell.schedule()
    systems: dict[str, System] = {
        "fullbore": Fullbore(plain, lanes, boundary_bytes=cell.boundary_bytes),
        "torch": TorchEmulated(cell, plain, mesh=lanes.mesh),
    }
    if cell.family == "1f1b":
        for extra in (1, 2):
            eager = cell.schedule(extra_warmup=extra)
            systems[f"fullbore +{extra}"] = Fullbore(eager, lanes, boundary_bytes=cell.boundary_bytes)
    return systems


class Fullbore:
    """The executor on the lanes of torch.distributed, with engines that wait."""

    def __init__(
        self, schedule: Schedule, lanes: Lanes, *, boundary_bytes: int, recorder: StepRecorder | None = None
    ) -> None:
        self.simulated = Simulated(schedule)
        self.stopwatch = Stopwatch()
        self._microbatches: list[Microbatch] = [{}] * schedule.num_microbatches
        boundary = Boundary((TensorSpec((max(1, boundary_bytes // 4),), torch.float32, gradient=True),))
        program, device, rank = lower(schedule), CpuDevice(), lanes.mesh.rank
        last = schedule.num_stages - 1
        self._recorder = recorder if recorder is not None else StepRecorder(device, SpanList(), rank=rank)
        self._executor = Executor(
            program,
            rank=rank,
            engines={
                stage: WaitingEngine(
                    stage,
                    self.stopwatch,
                    incoming=boundary if stage else None,
                    outgoing=boundary if stage < last else None,
                )
                for stage in schedule.placement.stages_of(Rank(rank))
            },
            transport=lanes.of(program.lanes),
            boundary_of=lambda message, microbatch: boundary,
            device=device.torch_device,
            recorder=self._recorder,
            board=None,
            timeout_s=60.0,
        )

    def step(self) -> None:
        self._executor.run(self._microbatches)
        self._recorder.end_step()


class Unrecorded:
    """In a recorder's place: keeps nothing and reads no clock."""

    first_microbatch = 0
    period = "a step that nobody records"

    def mark(self) -> int:
        return 0

    def compute(self, action: Compute, start: Mark, end: Mark) -> None: ...

    def waited(self, action: Compute, start: Mark, end: Mark) -> None: ...

    def begin_action(self, action: Compute) -> None: ...

    def end_step(self) -> None: ...


class WaitingEngine:
    """A stage that waits, and hands on memory that nothing was written to."""

    kinds = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
    num_live = 0
    held_bytes = 0

    def __init__(
        self, stage: StageIndex, stopwatch: Stopwatch, *, incoming: Boundary | None, outgoing: Boundary | None
    ) -> None:
        self._stage = stage
        self._stopwatch = stopwatch
        self._incoming = incoming
        self._outgoing = outgoing

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        self._stopwatch.wait(Compute(self._stage, Kind.FORWARD, index))
        return _parcel(self._outgoing)

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        self._stopwatch.wait(Compute(self._stage, Kind.BACKWARD, index))
        return _parcel(self._incoming)

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        self._stopwatch.wait(Compute(self._stage, Kind.BACKWARD_INPUT, index))
        return _parcel(self._incoming)

    def backward_weight(self, index: MicrobatchIndex) -> None:
        self._stopwatch.wait(Compute(self._stage, Kind.BACKWARD_WEIGHT, index))


def _parcel(boundary: Boundary | None) -> Parcel | None:
    if boundary is None:
        return None
    return tuple(torch.empty(spec.shape, dtype=spec.dtype) for spec in boundary.tensors)


class TorchEmulated:
    """PyTorch's schedule of the same order, with modules that wait in their forward and in their autograd node."""

    def __init__(self, cell: Cell, schedule: Schedule, *, mesh: Mesh) -> None:
        self.simulated = Simulated(schedule)
        self.stopwatch = Stopwatch()
        stages = schedule.placement.stages_of(Rank(mesh.rank))
        numbers = max(1, cell.boundary_bytes // 4)
        self._modules = [
            WaitingModule(
                stage,
                self.stopwatch,
                incoming=numbers if stage else None,
                outgoing=numbers if stage < schedule.num_stages - 1 else 1,
            )
            for stage in stages
        ]
        self._pipeline = TorchPipeline(
            self._modules,
            rank=mesh.rank,
            num_ranks=mesh.num_ranks,
            num_microbatches=cell.num_microbatches,
            loss=lambda output, target: output.sum(),
        )
        self._batch = torch.zeros(cell.num_microbatches, 1)
        _require_same_order(self._pipeline, schedule, rank=mesh.rank)

    def step(self) -> None:
        for module in self._modules:
            module.begin()
        self._pipeline.step(self._batch, self._batch)


class WaitingModule(nn.Module):
    """A stage that waits. PyTorch says no microbatch; both kinds of action come in ascending order."""

    def __init__(self, stage: StageIndex, stopwatch: Stopwatch, *, incoming: int | None, outgoing: int) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))  # makes the first stage's output need a gradient
        self._stage = stage
        self._stopwatch = stopwatch
        self.incoming = incoming
        self.outgoing = outgoing
        self.begin()

    def begin(self) -> None:
        self._turns = {kind: count() for kind in (Kind.FORWARD, Kind.BACKWARD)}

    def wait(self, kind: Kind) -> None:
        self._stopwatch.wait(Compute(self._stage, kind, MicrobatchIndex(next(self._turns[kind]))))

    def forward(self, carried: Tensor) -> Tensor:
        return _Waits.apply(carried, self.anchor, self)  # type: ignore[no-any-return]


class _Waits(torch.autograd.Function):
    """Waits in both directions; what goes on in either is memory that nothing was written to."""

    @staticmethod
    def forward(ctx: Any, carried: Tensor, anchor: Tensor, module: WaitingModule) -> Tensor:
        ctx.module = module
        module.wait(Kind.FORWARD)
        return torch.empty(module.outgoing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.module.wait(Kind.BACKWARD)
        return (None if ctx.module.incoming is None else torch.empty(ctx.module.incoming), None, None)


def _require_same_order(pipeline: TorchPipeline, schedule: Schedule, *, rank: int) -> None:
    """Interleaved: PyTorch's own list is compared. (Its 1F1B is a loop, and its list of that is one microbatch off.)"""
    if len(pipeline.stages) > 1:
        theirs = [str(action) for action in pipeline.schedule.pipeline_order[rank] if action is not None]
        ours = [str(action) for action in schedule.orders[rank]]
        assert theirs == ours, "both systems run the same order"
