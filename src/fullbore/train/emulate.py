"""Emulated training: the real schedule, executor and transport, with waiting in place of computing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fullbore.config.dump import dump_run
from fullbore.config.run import RunConfig
from fullbore.costs.layer import LayerCost, read_costs, write_costs
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Message, Payload
from fullbore.ir.lower import lower
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Boundary
from fullbore.plan.recipe_file import write_recipe
from fullbore.plan.resolve import resolve
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.emulated import EmulatedEngine, Jitter
from fullbore.runtime.executor import Executor
from fullbore.runtime.launch import Worker
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.torch_transport import TorchTransport
from fullbore.session.session import Place, join
from fullbore.timeline.instrument import Fanout, SpanList
from fullbore.trace.writer import TraceWriter
from fullbore.train.history import History
from fullbore.train.progress import Silence, open_progress
from fullbore.train.result import TrainResult

__all__ = ["emulate_rank"]


_KNOWN = {
    *("layers", "links", "jitter", "seed", "faults"),
    *("device", "dtype", "sequence_length", "microbatch_size", "threads", "torch", "emulated"),
}
"""What an emulation reads, and what a profile writes beside the layers."""


def emulate_rank(worker: Worker | None, config: RunConfig, run_dir: str, costs_path: str) -> TrainResult | None:
    """Rehearse ``config`` with the costs of a file; every rank runs this. The result on rank 0, None elsewhere.

    Raises:
        CostsError: the file cannot be used, or asks for what is not built yet.
    """
    layers, jitter = _read(Path(costs_path))
    resolved = resolve(config, costs=layers, layer_names=[layer.name for layer in layers])
    place = join(worker, config, device=CpuDevice())
    folder, rank = Path(place.mesh.gather(run_dir)[0]), place.mesh.rank
    recipe, schedule = resolved.recipe, resolved.schedule
    assert resolved.predicted is not None, "there are costs, so there is a prediction"
    costs = resolved.predicted.stage_costs
    crossing = [layers[end - 1].output_bytes for end in recipe.boundaries[1:-1]]
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.toml").write_text(dump_run(config), encoding="utf-8")
        write_recipe(folder / "plan.json", recipe, stage_costs=costs)
        write_costs(folder / "profile.json", layers, emulated=costs_path)
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
            schedule, costs, crossing, jitter, place=place, recorder=recorder, timeout_s=config.train.timeout_s
        )
        history = History()
        with open_progress(steps=config.train.steps) if rank == 0 else Silence() as progress:
            for reason in resolved.reasons:
                progress.say(reason)
            for step in range(config.train.steps):
                started = time.perf_counter_ns()
                for round_index in range(recipe.accumulation):
                    first = round_index * recipe.microbatches
                    executor.run([{}] * recipe.microbatches, first_microbatch=first)
                place.mesh.sum([0.0])
                recorder.end_step()
                bubble = history.account(spans.last, num_ranks=place.mesh.num_ranks, mesh=place.mesh)
                history.step_ns.append(time.perf_counter_ns() - started)
                progress.log({"step_ns": history.step_ns[-1], "bubble_fraction": bubble}, step=step + 1)
        writer.measured_again(place.mesh.measure_clock())
        problems = place.mesh.gather(writer.problem)
    place.mesh.close()
    if rank != 0:
        return None
    return history.result(run_dir=str(folder), tokens_per_step=None, resolved=resolved, problems=problems)


def _executor(
    schedule: Schedule,
    costs: Sequence[StageCost],
    crossing: Sequence[int],
    jitter: Mapping[str, Any],
    *,
    place: Place,
    recorder: StepRecorder,
    timeout_s: float,
) -> Executor:
    """Waiting engines for this rank's stages, on the real lanes."""
    rank = place.mesh.rank
    program = lower(schedule)
    engines = {
        stage: EmulatedEngine(
            costs[stage],
            input_bytes=crossing[stage - 1] if stage else None,
            output_bytes=crossing[stage] if stage < len(crossing) else None,
            jitter=Jitter(jitter["share"], seed=jitter["seed"] * 1_000_003 + stage) if jitter["share"] else None,
        )
        for stage in schedule.placement.stages_of(Rank(rank))
    }
    return Executor(
        program,
        rank=rank,
        engines=engines,
        transport=TorchTransport(
            program.lanes, rank=rank, ranks=place.mesh.ranks, device=place.device, timeout_s=timeout_s
        ),
        boundary_of=lambda message, _: _boundary_of(message, crossing),
        device=place.device.torch_device,
        recorder=recorder,
        board=place.board,
        timeout_s=timeout_s,
    )


def _boundary_of(message: Message, crossing: Sequence[int]) -> Boundary:
    boundary = message.stage if message.payload is Payload.ACTIVATION else StageIndex(message.stage - 1)
    return Boundary((max(crossing[boundary], 1),), torch.uint8)


def _read(path: Path) -> tuple[tuple[LayerCost, ...], dict[str, Any]]:
    """Layers, and how the times vary. What a rehearsal cannot do yet is refused, not ignored."""
    layers = read_costs(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    unknown = document.keys() - _KNOWN
    if unknown:
        raise CostsError(f"unknown key {min(unknown)!r} in {path}; an emulated run takes {', '.join(sorted(_KNOWN))}")
    for key in ("links", "faults"):
        if document.get(key):
            raise CostsError(f"{key} in an emulated run are not built yet ({path}); remove the key")
    share, seed = document.get("jitter", 0.0), document.get("seed", 0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise CostsError(f"jitter is a share of each duration, 0 or more and less than 1 ({path}: {share!r})")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise CostsError(f"seed is an integer of at least 0 ({path}: {seed!r})")
    return layers, {"share": float(share), "seed": seed}
