"""Is the runtime right on a GPU? One GPU is enough: every rank is a thread with a stream of its own.

    python benchmarks/device_check.py [--json] [--device cuda|cpu] [--ranks P] [--width N] [--microbatches M]

For every registered schedule that the engine runs, with the real executor and engines over the in-memory transport:

    parity    gradients and loss against one process, float64, within 1e-9
    syncs     a step in which PyTorch raises on anything that would make the host wait for the device
    spans     every span timed by events, in the order of the schedule, none negative, none overlapping on a rank
    memory    peak bytes allocated in a step; for 1F1B at m and 4 m, which must be about equal

Where there is no GPU it says so and ends with 0. ``--device cpu`` runs what needs none: parity and spans.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from stream_transport import StreamTransport
from torch import Tensor, nn

from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Kind, Message, Payload
from fullbore.ir.lower import lower
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Boundary, Microbatch, Objective
from fullbore.models.sequential import sequential_model
from fullbore.runtime.device import CpuDevice, CudaDevice, Device
from fullbore.runtime.eager import EagerEngine
from fullbore.runtime.executor import Executor
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.memory_transport import MemoryFabric
from fullbore.schedules.registry import REGISTRY
from fullbore.timeline.instrument import SpanList
from fullbore.timeline.span import Row, Span

TOLERANCE = 1e-9
TIMEOUT_S = 60.0
SQUARED = Objective(
    loss_sum=lambda output, microbatch: ((output - microbatch["targets"]) ** 2).sum(),
    count=lambda microbatch: microbatch["targets"].numel(),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    ranks: int
    width: int
    rows: int
    microbatches: int


def main() -> None:
    parser = argparse.ArgumentParser(description="The runtime on a GPU, all ranks in one process.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=512, help="samples of a microbatch")
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        why = "this machine has no CUDA device (torch.cuda.is_available() is False); --device cpu checks the rest"
        print(json.dumps({"skipped": why}) if options.json else f"skipped: {why}")
        return
    sizes = Sizes(options.ranks, options.width, options.rows, options.microbatches)
    rows = [check(name, sizes, kind=options.device) for name in REGISTRY if runs(name)]
    failed = [row["schedule"] for row in rows if not row["ok"]]
    if options.json:
        print(json.dumps({"rows": rows, "failed": failed}, indent=2))
    else:
        for row in rows:
            print("  ".join(f"{key} {value}" for key, value in row.items()))
    sys.exit(1 if failed else 0)


def runs(name: str) -> bool:
    """Does the eager engine run all of its kinds of action?"""
    entry = REGISTRY[name]
    split = {Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
    return entry.runnable and (not entry.splits_backward or EagerEngine.kinds >= split)


def check(name: str, sizes: Sizes, *, kind: str) -> dict[str, Any]:
    """One schedule: two steps (the first warms up), then what was found of the second."""
    schedule = REGISTRY[name].build(sizes.ranks, num_microbatches=sizes.microbatches)
    model = whole_model(schedule.placement.stages_per_stream, sizes)
    found = run(model, schedule, sizes, kind=kind)
    gradients, loss = alone(model, sizes, kind=kind, num_microbatches=schedule.num_microbatches)
    errors = [float((found.gradients[key] - value).abs().max() / value.abs().max()) for key, value in gradients.items()]
    error = max(*errors, abs(found.loss - loss) / abs(loss))
    row: dict[str, Any] = {"schedule": name, "parity_error": error, "spans": check_spans(found.spans, schedule)}
    row["ok"] = error < TOLERANCE and row["spans"] == "right" and found.gradients.keys() == gradients.keys()
    if kind == "cuda":
        row["peak_bytes"] = found.peak_bytes
        if name == "1f1b":
            longer = Sizes(sizes.ranks, sizes.width, sizes.rows, 4 * sizes.microbatches)
            four = REGISTRY[name].build(sizes.ranks, num_microbatches=longer.microbatches)
            row["peak_bytes_at_4m"] = run(model, four, longer, kind=kind).peak_bytes
            row["ok"] = row["ok"] and row["peak_bytes_at_4m"] < 1.1 * row["peak_bytes"]
    return row


@dataclass(frozen=True, slots=True)
class Found:
    gradients: dict[str, Tensor]
    loss: float
    spans: list[list[Span]]
    peak_bytes: int


def run(model: nn.Sequential, schedule: Schedule, sizes: Sizes, *, kind: str) -> Found:
    """Every rank on a thread. The second step is the one in which nothing may wait for the device."""
    placement = schedule.placement
    copies = [model, *(copy.deepcopy(model) for _ in placement.streams[1:])]
    layered = sequential_model(model)
    torch_device = torch.device(kind, 0) if kind == "cuda" else torch.device("cpu")
    batch = batch_of(sizes, schedule.num_microbatches, torch_device)
    for microbatch in batch[:1]:
        layered.boundary(1, microbatch)  # the shapes, once, before threads ask for them
    fabric = MemoryFabric()
    program = lower(schedule)
    spans = [SpanList() for _ in range(schedule.num_ranks)]
    engines: list[dict[StageIndex, EagerEngine]] = []
    failures: list[BaseException] = []
    meeting = threading.Barrier(schedule.num_ranks + 1)

    def boundary_of(message: Message, microbatch: Microbatch) -> Boundary:
        place = placement.place_of(message.stage)
        return layered.boundary(place + (1 if message.payload is Payload.ACTIVATION else 0), microbatch)

    for rank in range(schedule.num_ranks):
        mine: dict[StageIndex, EagerEngine] = {}
        for stage in placement.stages_of(Rank(rank)):
            place = placement.place_of(stage)
            first, last = placement.previous_stage(stage) is None, placement.next_stage(stage) is None
            whole = sequential_model(
                next(c for c, stream in zip(copies, placement.streams, strict=True) if stage in stream)
            )
            built = whole.build_stage(place, place + 1, seed=0, device=torch_device)
            mine[stage] = EagerEngine(
                built.module,
                entrance=None if first else lambda microbatch, at=place: layered.boundary(at, microbatch),
                exit=None if last else lambda microbatch, at=place: layered.boundary(at + 1, microbatch),
                objective=SQUARED if last else None,
            )
        engines.append(mine)

    def walk(rank: int) -> None:
        try:
            with on_stream(kind) as (device, cuda):
                transport = fabric.transport(rank) if cuda is None else StreamTransport(fabric, rank=rank, device=cuda)
                recorder = StepRecorder(device, spans[rank], rank=rank)
                executor = Executor(
                    program,
                    rank=rank,
                    engines=engines[rank],
                    transport=transport,
                    boundary_of=boundary_of,
                    device=torch_device,
                    recorder=recorder,
                    board=None,
                    timeout_s=TIMEOUT_S,
                )
                for _ in range(2):
                    for engine in engines[rank].values():
                        engine.begin(sum(SQUARED.count(microbatch) for microbatch in batch))
                    meeting.wait(TIMEOUT_S)
                    executor.run(batch)
                    meeting.wait(TIMEOUT_S)
                    recorder.end_step()
        except BaseException as error:
            failures.append(error)
            fabric.abort(str(error))
            meeting.abort()

    threads = [threading.Thread(target=walk, args=(rank,)) for rank in range(schedule.num_ranks)]
    for thread in threads:
        thread.start()
    peak = 0
    with contextlib.suppress(threading.BrokenBarrierError):
        for step in range(2):
            for each in copies:
                each.zero_grad()  # every rank waits for this thread, at the beginning of a step
            meeting.wait(TIMEOUT_S)
            with no_sync(kind, forbidden=step == 1):
                meeting.wait(TIMEOUT_S)
            if kind == "cuda":
                peak = torch.cuda.max_memory_allocated()
                torch.cuda.reset_peak_memory_stats()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    sums = [float(engine.loss_sum) for mine in engines for engine in mine.values() if engine.loss_sum is not None]
    gradients: dict[str, Tensor] = {}
    for each in copies:
        for name, parameter in each.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad + gradients[name] if name in gradients else parameter.grad.clone()
    count = sum(SQUARED.count(microbatch) for microbatch in batch)
    return Found(gradients, sum(sums) / count, [list(each.last) for each in spans], peak)


def alone(model: nn.Sequential, sizes: Sizes, *, kind: str, num_microbatches: int) -> tuple[dict[str, Tensor], float]:
    """The reference: the same microbatches in the same order, plain autograd."""
    batch = batch_of(sizes, num_microbatches, torch.device(kind))
    count = sum(SQUARED.count(microbatch) for microbatch in batch)
    model.zero_grad()
    total = 0.0
    for microbatch in batch:
        loss = SQUARED.loss_sum(model(microbatch["inputs"]), microbatch) / count
        loss.backward()
        total += float(loss.detach())
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, total


def whole_model(num_layers: int, sizes: Sizes) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(sizes.width, sizes.width), nn.Tanh()) for _ in range(num_layers)]
    return nn.Sequential(*blocks).double()


def batch_of(sizes: Sizes, num_microbatches: int, device: torch.device) -> list[Microbatch]:
    generator = torch.Generator().manual_seed(1)
    shape = (sizes.rows, sizes.width)
    return [
        {key: torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for key in ("inputs", "targets")}
        for _ in range(num_microbatches)
    ]


@contextlib.contextmanager
def on_stream(kind: str) -> Iterator[tuple[Device, CudaDevice | None]]:
    """The rank's device, and on a GPU a stream of its own for everything inside."""
    if kind == "cpu":
        yield CpuDevice(), None
        return
    with torch.cuda.stream(torch.cuda.Stream()):
        device = CudaDevice(0)
        yield device, device


@contextlib.contextmanager
def no_sync(kind: str, *, forbidden: bool) -> Iterator[None]:
    """PyTorch raises on what makes the host wait for the device, while ``forbidden``."""
    if kind == "cuda" and forbidden:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if kind == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def check_spans(by_rank: list[list[Span]], schedule: Schedule) -> str:
    """``right``, or the first thing that is not."""
    for rank, spans in enumerate(by_rank):
        computed = [span for span in spans if span.row is Row.COMPUTE]
        if [span.action for span in computed] != list(schedule.orders[rank]):
            return f"rank {rank}: other actions than the schedule's"
        if any(span.end_ns < span.start_ns for span in computed):
            return f"rank {rank}: a span that ends before it starts"
        if any(one.end_ns > other.start_ns for one, other in itertools.pairwise(computed)):
            return f"rank {rank}: spans that overlap"
    return "right"


if __name__ == "__main__":
    main()
