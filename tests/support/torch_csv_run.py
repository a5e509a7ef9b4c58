"""PyTorch's pipeline runtime on launched ranks, running schedules from CSV files."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from fullbore.ids import Rank
from fullbore.ir.schedule_file import read_schedule_file
from fullbore.runtime.processes.launch import Worker


def largest_gradient_errors(worker: Worker, cases: Sequence[tuple[str, str]], store: str) -> list[float]:
    """For each (file, format): the largest difference of a gradient of this rank from one process's mean over
    microbatches."""
    torch.set_num_threads(1)
    files = dist.FileStore(store, worker.num_ranks)
    dist.init_process_group("gloo", store=files, rank=worker.rank, world_size=worker.num_ranks)
    errors = [_error(worker.rank, path, form) for path, form in cases]
    dist.barrier()
    dist.destroy_process_group()
    return errors


def _error(rank: int, path: str, form: str) -> float:
    placed = read_schedule_file(Path(path))
    microbatches, stages = placed.num_microbatches, placed.num_stages
    mine = [int(stage) for stage in placed.placement.stages_of(Rank(rank))]
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(stages)]
    reference = copy.deepcopy(layers)
    inputs, targets = torch.randn(2 * microbatches, 8), torch.randn(2 * microbatches, 8)
    held = [PipelineStage(layers[stage], stage, stages, torch.device("cpu")) for stage in mine]
    schedule = _PipelineScheduleRuntime(held, microbatches, loss_fn=_loss, scale_grads=True)  # type: ignore[no-untyped-call]
    schedule._load_csv(path, format=form)  # type: ignore[no-untyped-call, arg-type]
    last = {"target": targets, "losses": []} if stages - 1 in mine else {}
    schedule.step(*((inputs,) if 0 in mine else ()), **last)
    for part, target in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True):
        for layer in reference:
            part = layer(part)
        _loss(part, target).backward()
    differences = []
    for stage in mine:
        for ours, theirs in zip(layers[stage].parameters(), reference[stage].parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            differences.append(float((ours.grad - theirs.grad / microbatches).abs().max()))
    return max(differences)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).sum()
