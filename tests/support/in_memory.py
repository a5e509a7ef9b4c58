"""Run a program with the real executor on threads, over the in-memory transport (NCCL's rules)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.errors import RankFailed, ScheduleError
from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Kind, Message
from fullbore.ir.lower import lower
from fullbore.ir.program import Lane
from fullbore.ir.schedule import Schedule
from fullbore.models.checkpoints import Watch
from fullbore.models.layered import Boundary, BuiltStage, Microbatch, Objective, Parcel, TensorSpec
from fullbore.models.recompute import apply_recompute
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.eager import EagerEngine
from fullbore.runtime.executor import Executor
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.memory_transport import MemoryFabric, lane_of_its_own
from fullbore.schedules.sizes import Sizes
from fullbore.synthesis.catalogue import CATALOGUE
from fullbore.timeline.instrument import SpanList
from fullbore.timeline.span import Row

WIDTH = 3
ROWS = 2

SQUARED_ERROR = Objective(
    loss_sum=lambda output, microbatch: ((output - microbatch["targets"]) ** 2).sum(),
    count=lambda microbatch: microbatch["targets"].numel(),
)


class ChainStage(nn.Module):
    """One linear layer with tanh, in float64; reads the batch on the first stage. Sleeps a little if asked. Two stages
    at the same place of two streams have the same weight."""

    def __init__(self, place: int, *, last: bool, pause: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(place)
        linear = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        linear.weight.data = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        self.layer = nn.Sequential(linear, nn.Tanh())
        self._last = last
        self._pause = pause

    @property
    def weight(self) -> nn.Parameter:
        weight = self.layer[0].weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, carried: Parcel | None, microbatch: Microbatch) -> Tensor | Parcel:
        self._pause()
        output = self.layer(microbatch["inputs"] if carried is None else carried[0])
        return output if self._last else (output,)


@dataclass(frozen=True, slots=True)
class Outcome:
    gradients: Mapping[int, Tensor]
    """By place in the stream; where there are two, both copies' added up."""

    loss: float
    peak_activations: tuple[int, ...]
    peak_held_bytes: tuple[int, ...]
    errors: tuple[RankFailed, ...]
    recomputed: tuple[tuple[Row, str], ...] = ()
    """Every second forward: as an action of its own or nested in another, and its name."""


def held_by_linear(schedule: Schedule) -> dict[StageIndex, int]:
    """Bytes that a microbatch of each stage keeps from I to W: its linear layer's input and output gradient."""
    return dict.fromkeys(map(StageIndex, range(schedule.num_stages)), 2 * ROWS * WIDTH * 8)


def chain_batch(num_microbatches: int) -> list[Microbatch]:
    generator = torch.Generator().manual_seed(1000)
    shape = (ROWS, WIDTH)
    return [
        {
            "inputs": torch.randn(shape, generator=generator, dtype=torch.float64),
            "targets": torch.randn(shape, generator=generator, dtype=torch.float64),
        }
        for _ in range(num_microbatches)
    ]


def run_alone(num_stages: int, num_microbatches: int) -> Outcome:
    """The reference: one process, the same microbatches in the same order, plain autograd."""
    stages = [ChainStage(stage, last=stage == num_stages - 1) for stage in range(num_stages)]
    batch = chain_batch(num_microbatches)
    count = sum(SQUARED_ERROR.count(microbatch) for microbatch in batch)
    total = 0.0
    for microbatch in batch:
        value: Any = None
        for stage in stages:
            value = stage(value, microbatch)
        assert value is not None
        loss = SQUARED_ERROR.loss_sum(value, microbatch) / count
        loss.backward()
        total += float(loss.detach())
    gradients = {index: stage.weight.grad for index, stage in enumerate(stages) if stage.weight.grad is not None}
    return Outcome(gradients, total, (), (), ())


def run_on_threads(
    schedule: Schedule,
    *,
    seed: int = 0,
    longest_delay_s: float = 0.0,
    communicator_of: Callable[[Lane], Hashable] = lane_of_its_own,
    timeout_s: float = 20.0,
    prefetch: int = 2,
    recompute: bool = False,
) -> Outcome:
    """Every rank a thread, every message under rendezvous, in order, without tags, with random delays.

    ``recompute``: every stage's layer, in an R where the schedule has one.
    """
    program = lower(schedule, prefetch=prefetch)
    batch = chain_batch(schedule.num_microbatches)
    fabric = MemoryFabric(
        communicator_of=communicator_of, delay_s=MemoryFabric.random_delays(seed, longest_s=longest_delay_s)
    )
    source = random.Random(seed)
    pause = (lambda: time.sleep(source.uniform(0, longest_delay_s))) if longest_delay_s else (lambda: None)
    engines: list[dict[StageIndex, EagerEngine]] = []
    executors: list[Executor] = []
    spans = [SpanList() for _ in range(schedule.num_ranks)]
    for rank in range(schedule.num_ranks):
        recorder = StepRecorder(CpuDevice(), spans[rank], rank=rank)
        mine = {
            stage: engine_of(stage, schedule, pause=pause, recorder=recorder if recompute else None)
            for stage in schedule.placement.stages_of(Rank(rank))
        }
        engines.append(mine)
        executors.append(
            Executor(
                program,
                rank=rank,
                engines=mine,
                transport=fabric.transport(rank),
                boundary_of=boundary_of,
                device=torch.device("cpu"),
                recorder=recorder,
                board=None,
                timeout_s=timeout_s,
            )
        )
    count = sum(SQUARED_ERROR.count(microbatch) for microbatch in batch)
    errors: list[RankFailed] = []

    def walk(rank: int) -> None:
        for engine in engines[rank].values():
            engine.begin(count)
        try:
            executors[rank].run(batch)
        except RankFailed as error:
            errors.append(error)
            fabric.abort(str(error))

    threads = [threading.Thread(target=walk, args=(rank,)) for rank in range(schedule.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gradients = by_place([(stage, engine) for mine in engines for stage, engine in mine.items()], schedule)
    sums = [engine.loss_sum for mine in engines for engine in mine.values() if engine.loss_sum is not None]
    loss = sum(float(value) for value in sums) / count
    activations = tuple(executor.peak_activations for executor in executors)
    held = tuple(executor.peak_held_bytes for executor in executors)
    for executor in executors:
        executor.recorder.end_step()
    recomputed = tuple(
        (span.row, str(span.action))
        for one in spans
        for span in one.last
        if span.action is not None and span.action.kind is Kind.RECOMPUTE
    )
    return Outcome(gradients, loss, activations, held, tuple(errors), recomputed)


def by_place(engines: Iterable[tuple[StageIndex, EagerEngine]], schedule: Schedule) -> dict[int, Tensor]:
    """The gradients of a step, as `Outcome` has them."""
    found: dict[int, Tensor] = {}
    for stage, engine in sorted(engines, key=lambda pair: pair[0]):
        gradient, place = engine._module.weight.grad, schedule.placement.place_of(stage)
        if gradient is not None:
            found[place] = found[place] + gradient if place in found else gradient
    return found


def engine_of(
    stage: StageIndex,
    schedule: Schedule,
    *,
    pause: Callable[[], None] = lambda: None,
    recorder: StepRecorder | None = None,
) -> EagerEngine:
    """Of one stage of the chain, for whole and split backwards. With a ``recorder`` the layer recomputes."""
    placement = schedule.placement
    first, last = placement.previous_stage(stage) is None, placement.next_stage(stage) is None
    module = ChainStage(placement.place_of(stage), pause=pause, last=last)
    deferral = Deferral()
    apply_weight_splits(module, deferral)
    watch = Watch()
    if recorder is not None:
        built = BuiltStage(module, {}, {}, ("layer",), {"layer": module.layer}, {})
        apply_recompute(built, ["layer"], around=lambda _: recorder.nested(Kind.RECOMPUTE), watch=watch)
    return EagerEngine(
        module,
        entrance=None if first else edge,
        exit=None if last else edge,
        objective=SQUARED_ERROR if last else None,
        deferral=deferral,
        split=schedule.split_on(stage),
        watch=watch,
        ahead=schedule.recomputed_on(stage),
    )


def boundary_of(message: Message, microbatch: Microbatch) -> Boundary:
    del message
    return edge(microbatch)


def edge(microbatch: Microbatch) -> Boundary:
    inputs = microbatch["inputs"]
    return Boundary((TensorSpec(tuple(inputs.shape), inputs.dtype, gradient=True),))


def both_directions_on_one(lane: Lane) -> Hashable:
    """The wrong rule: one communicator for a pair of ranks."""
    return frozenset((lane.sender, lane.receiver))


@dataclass(frozen=True, slots=True)
class Case:
    """A registered schedule at sizes for which it exists, and what else is random."""

    name: str
    sizes: Sizes
    seed: int

    @property
    def schedule(self) -> Schedule:
        return CATALOGUE[self.name].make(self.sizes)


def random_cases(count: int, *, names: Sequence[str], seed: int) -> list[Case]:
    """The same every time. Chunks and options are drawn too; sizes that a schedule refuses are drawn again."""
    source = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        entry = CATALOGUE[source.choice(names)]
        ranks, microbatches = source.choice((2, 4, 8)), source.randint(1, 12)
        chunks = source.choice((2, 3)) if entry.takes_chunks and ranks < 8 else None
        options = {
            option.name: source.choice((option.default, option.least + source.randint(0, 6)))
            for option in entry.options
        }
        try:
            sizes = entry.sizes(ranks, num_microbatches=microbatches, num_chunks=chunks, options=options)
        except ScheduleError:
            continue
        cases.append(Case(entry.name, sizes, source.randrange(2**31)))
    return cases
