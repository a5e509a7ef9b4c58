"""Emulated training: the real schedule, executor and transport, with waiting in place of computing.

The plan knows the layers and the links. It does not know the faults: that is what an emulation is for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fullbore.config.run import RunConfig
from fullbore.costs.emulation import EmulationSettings, read_emulation
from fullbore.costs.layer import read_costs, write_costs
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import links_over, sizes_over
from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Message
from fullbore.ir.flow import consumer_of
from fullbore.ir.lower import lower
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import write_schedule_file
from fullbore.models.layered import Boundary, TensorSpec
from fullbore.plan.recipe_file import write_recipe
from fullbore.plan.resolve import resolve
from fullbore.plan.schedule import asked_schedule
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.emulated import EmulatedEngine, Jitter
from fullbore.runtime.executor import Executor
from fullbore.runtime.processes.launch import Worker
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.torch_transport import TorchTransport
from fullbore.runtime.transport.transport import Transport
from fullbore.session.session import Place, join
from fullbore.timeline.instrument import Fanout, SpanList
from fullbore.trace.writer import TraceWriter
from fullbore.train.emulated_links import STAMP_BYTES, LinkedTransport
from fullbore.train.history import History
from fullbore.train.progress import Silence, open_progress
from fullbore.train.result import TrainResult

__all__ = ["emulate_rank"]


def emulate_rank(worker: Worker | None, config: RunConfig, run_dir: str, costs_path: str) -> TrainResult | None:
    """Emulate ``config`` with the costs of a file; every rank runs this. The result on rank 0, None elsewhere.

    Raises:
        CostsError: the file cannot be used, or does not fit the pipeline.
    """
    layers, settings = read_costs(Path(costs_path)), read_emulation(Path(costs_path))
    asked, names = asked_schedule(config), [layer.name for layer in layers]
    settings.require(num_ranks=config.pipeline.stages, num_stages=asked.placement.stages_per_stream)
    resolved = resolve(config, costs=layers, layer_names=names, links=settings.links, asked=asked)
    place = join(worker, config, layout=asked.layout(config.mesh), device=CpuDevice())
    folder, rank = Path(place.mesh.gather(run_dir)[0]), place.mesh.rank
    recipe, schedule = resolved.recipe, resolved.schedule
    assert resolved.predicted is not None, "there are costs, so there is a prediction"
    costs = resolved.predicted.stage_costs
    crossing = [layers[end - 1].output_bytes for end in recipe.boundaries[1:-1]]
    if rank == 0:
        write_recipe(folder / "plan.json", recipe, stage_costs=costs)
        write_schedule_file(folder / "schedule.txt", schedule)
        write_costs(folder / "profile.json", layers, emulated=costs_path, **settings.document())
    spans = SpanList()
    with TraceWriter(
        folder,
        rank=rank,
        placement=schedule.placement,
        schedule=schedule.name,
        clock=place.mesh.clock,
    ) as writer:
        recorder = StepRecorder(place.device, Fanout((spans, writer)), rank=rank)
        executor = _executor(
            schedule, costs, crossing, settings, place=place, recorder=recorder, timeout_s=config.train.timeout_s
        )
        history = History()
        with open_progress(steps=config.train.steps) if rank == 0 else Silence() as progress:
            for reason in resolved.reasons:
                progress.say(reason)
            for fault in settings.faults:
                progress.say(f"fault: rank {fault.rank} takes {fault.factor:g} times as long, unknown to the plan")
            for step in range(config.train.steps):
                started = time.perf_counter_ns()
                for round_index in range(recipe.accumulation):
                    first = round_index * recipe.microbatches
                    executor.run([{}] * recipe.microbatches, first_microbatch=first)
                place.mesh.barrier()
                recorder.end_step()
                history.step_ns.append(time.perf_counter_ns() - started)
                bubble = history.account(spans.last, num_ranks=place.mesh.num_ranks, mesh=place.mesh)
                if bubble is not None:
                    progress.log({"step_ns": history.step_ns[-1], "bubble_fraction": bubble}, step=step + 1)
        writer.measured_again(place.mesh.measure_clock())
        problems = place.mesh.gather(writer.problem)
    place.mesh.close()
    if rank != 0:
        return None
    return history.result(
        run_dir=str(folder),
        resolved=resolved,
        problems=problems,
        costs=layers,
        links=settings.links,
    )


def _executor(
    schedule: Schedule,
    costs: Sequence[StageCost],
    crossing: Sequence[int],
    settings: EmulationSettings,
    *,
    place: Place,
    recorder: StepRecorder,
    timeout_s: float,
) -> Executor:
    """Waiting engines for this rank's stages, on the real lanes. ``crossing``: bytes over each boundary of a stream."""
    rank, placement = place.mesh.rank, schedule.placement
    program = lower(schedule)
    slowness = settings.slowness(num_ranks=schedule.num_ranks)[rank]
    least = STAMP_BYTES if settings.links else 1
    sizes = sizes_over([max(size, least) for size in crossing], placement)
    engines: dict[StageIndex, EmulatedEngine] = {}
    for stage in placement.stages_of(Rank(rank)):
        before, after = placement.previous_stage(stage), placement.next_stage(stage)
        engines[stage] = EmulatedEngine(
            costs[stage].slowed(slowness),
            input_bytes=None if before is None else sizes[min(before, stage)],
            output_bytes=None if after is None else sizes[min(after, stage)],
            jitter=Jitter(settings.jitter, seed=settings.seed * 1_000_003 + stage) if settings.jitter else None,
        )

    def boundary(message: Message) -> int:
        """The boundary it crosses: s lies between stage s and stage s + 1."""
        return min(message.stage, consumer_of(message, placement))

    transport: Transport = TorchTransport(
        program.lanes, rank=rank, ranks=place.mesh.ranks, device=place.device, timeout_s=timeout_s
    )
    if settings.links:
        links, bytes_over = links_over(settings.links, placement), sizes_over(crossing, placement)
        delays = [link.delay_ns(size) for link, size in zip(links, bytes_over, strict=True)]
        transport = LinkedTransport(
            transport,
            delay_ns=lambda message: delays[boundary(message)],
            offset_ns=place.mesh.clock.offset_ns,
        )
    return Executor(
        program,
        rank=rank,
        engines=engines,
        transport=transport,
        boundary_of=lambda message, _: _crosses(sizes[boundary(message)]),
        device=place.device.torch_device,
        recorder=recorder,
        board=place.board,
        timeout_s=timeout_s,
    )


def _crosses(size_bytes: int) -> Boundary:
    return Boundary((TensorSpec((size_bytes,), torch.uint8, gradient=True),))
