"""What one rank does for `split_overhead.py`: all systems of a cell in one process group, their steps in turn."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from emulation import Durations, Simulated, Stopwatch
from overhead_ranks import Fullbore, Lanes, Steps, System, open_lanes, timed_step
from peers.torch_orders import TorchOrder
from split_emulation import FULLBORE, Contestant, SplitCell, late_first_stage, stage_actions
from torch import Tensor, nn

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.runtime.processes.launch import Worker

__all__ = ["SplitMeasured", "measure_split"]


@dataclass(frozen=True, slots=True)
class SplitMeasured:
    """The rounds of one system in one cell."""

    cell: SplitCell
    contestant: Contestant
    steps: Steps = field(default_factory=Steps)


def measure_split(
    worker: Worker, cells: Sequence[tuple[SplitCell, Sequence[Contestant]]], rounds: int
) -> list[SplitMeasured]:
    """All cells of this number of ranks. Every rank returns the same steps; rank 0's are read."""
    found: list[SplitMeasured] = []
    with open_lanes(worker) as lanes:
        for cell, systems in cells:
            found += _measure(cell, systems, lanes=lanes, rounds=rounds)
    return found


def _measure(cell: SplitCell, contestants: Sequence[Contestant], *, lanes: Lanes, rounds: int) -> list[SplitMeasured]:
    rows = [SplitMeasured(cell, contestant) for contestant in contestants]
    systems = {row.contestant.name: _system(row.contestant, cell, lanes) for row in rows}
    for system in systems.values():
        timed_step(system, {}, lanes.mesh)  # buffers, connections and PyTorch's shape inference
    gc.collect()
    gc.freeze()  # what all systems have built is not gone through again in the middle of a step
    for index in range(rounds):
        drawn = {place: cell.durations(index, place) for place in {row.contestant.schedule.placement for row in rows}}
        for row in Random(f"{cell}/{index}").sample(rows, len(rows)):
            contestant, system = row.contestant, systems[row.contestant.name]
            durations = _durations(contestant, drawn[contestant.schedule.placement])
            step = timed_step(system, durations, lanes.mesh)
            waited = int(lanes.mesh.sum([float(system.stopwatch.asked_ns)])[0])
            assert waited == _work(contestant.schedule, durations), f"{contestant.name} waits for every action once"
            row.steps.add(step, simulated_ns=system.simulated.makespan_ns(durations))
    gc.unfreeze()
    return rows


def _work(schedule: Schedule, durations: Durations) -> int:
    return sum(durations[action] for order in schedule.orders for action in order)


def _durations(contestant: Contestant, drawn: Durations) -> Durations:
    return drawn if contestant.system == FULLBORE else late_first_stage(drawn)


def _system(contestant: Contestant, cell: SplitCell, lanes: Lanes) -> System:
    if contestant.system == FULLBORE:
        return Fullbore(_one_by_one(contestant.schedule), lanes, boundary_bytes=cell.boundary_bytes)
    return TorchSplit(contestant, cell, rank=lanes.mesh.rank)


def _one_by_one(schedule: Schedule) -> Schedule:
    """Both runtimes start the two actions of a pair one after the other, each when its own data is there."""
    return replace(schedule, overlaps=frozenset())


class TorchSplit:
    """PyTorch, with modules whose forward, input gradient and weight gradient wait."""

    def __init__(self, contestant: Contestant, cell: SplitCell, *, rank: int) -> None:
        schedule = contestant.schedule
        self.simulated = Simulated(_one_by_one(schedule))
        self.stopwatch = Stopwatch()
        placement: Placement = schedule.placement
        numbers = max(1, cell.boundary_bytes // 4)
        self._modules = {
            stage: WaitingStage(
                stage,
                self.stopwatch,
                actions=stage_actions(schedule, rank, stage),
                incoming=numbers,
                outgoing=numbers if stage < schedule.num_stages - 1 else 1,
            )
            for stage in placement.stages_of(Rank(rank))
        }
        self._pipeline = TorchOrder(
            self._modules,
            schedule=schedule,
            name=contestant.torch_class,
            loss=lambda output, target: output.sum(),
        )
        self._batch = torch.zeros(cell.num_microbatches, 1)

    def step(self) -> None:
        for module in self._modules.values():
            module.begin()
        self._pipeline.step(self._batch, self._batch)


class WaitingStage(nn.Module):
    """y = a + b, where a comes of the input and b of a weight, so that their gradients lie on two branches:

        input  -- forward waits F | backward waits I --> a --+
        weight --                 | backward waits W --> b --+--> y

    PyTorch's I runs the upper branch and its W the lower one. Nothing comes before stage 0, so there the upper branch
    has no backward and the lower one waits for both halves (`late_first_stage`). PyTorch never says which microbatch it
    runs: that follows from the order of the schedule.
    """

    def __init__(
        self, stage: StageIndex, stopwatch: Stopwatch, *, actions: Sequence[Compute], incoming: int, outgoing: int
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.incoming = incoming
        self.outgoing = outgoing
        self._stage = stage
        self._stopwatch = stopwatch
        self._turns_of = {
            Kind.FORWARD: _microbatches(actions, (Kind.FORWARD,)),
            Kind.BACKWARD_INPUT: _microbatches(actions, (Kind.BACKWARD, Kind.BACKWARD_INPUT)),
            Kind.BACKWARD_WEIGHT: _microbatches(actions, (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)),
        }
        self.begin()

    def begin(self) -> None:
        """Before a step."""
        self._turns: dict[Kind, Iterator[MicrobatchIndex]] = {k: iter(turns) for k, turns in self._turns_of.items()}

    def wait(self, kind: Kind) -> None:
        microbatch = next(self._turns[kind], None)
        if microbatch is not None:  # it is once more than planned where PyTorch infers shapes
            self._stopwatch.wait(Compute(self._stage, kind, microbatch))

    def forward(self, carried: Tensor) -> Tensor:
        passed: Tensor = _FromInput.apply(carried, self)  # type: ignore[no-untyped-call]
        added: Tensor = _FromWeight.apply(self.weight, self)  # type: ignore[no-untyped-call]
        return passed + added


def _microbatches(actions: Sequence[Compute], kinds: Sequence[Kind]) -> list[MicrobatchIndex]:
    return [action.microbatch for action in actions if action.kind in kinds]


class _FromInput(torch.autograd.Function):
    """Waits in both directions; what comes out of either is memory that nothing was written to."""

    @staticmethod
    def forward(ctx: Any, carried: Tensor, module: WaitingStage) -> Tensor:
        ctx.module = module
        module.wait(Kind.FORWARD)
        return torch.empty(module.outgoing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.module.wait(Kind.BACKWARD_INPUT)
        return torch.empty(ctx.module.incoming), None


class _FromWeight(torch.autograd.Function):
    """Waits in the backward only."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, module: WaitingStage) -> Tensor:
        ctx.module = module
        return torch.empty(module.outgoing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.module.wait(Kind.BACKWARD_WEIGHT)
        return torch.zeros(1), None
