"""PyTorch's own schedules, without processes: its classes look at sizes only, so stages are bare records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

MULTI: Mapping[str, str] = MappingProxyType(
    {
        "ScheduleLoopedBFS": "loop",
        "ScheduleInterleaved1F1B": "loop",
        "ScheduleInterleavedZeroBubble": "loop",
        "ScheduleZBVZeroBubble": "v",
        "ScheduleDualPipeV": "v",
    }
)
"""The multi-stage classes and their placement."""


@dataclass
class Stage:
    """What a schedule asks of a stage before it runs."""

    stage_index: int
    num_stages: int
    group_size: int
    group_rank: int = 0
    submod: object = None
    has_backward: bool = True
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1


def single(name: str, *, num_ranks: int, num_microbatches: int) -> Any:
    """A schedule of one stage a rank."""
    stage = Stage(0, num_ranks, num_ranks)
    return getattr(torch_schedules, name)(stage, num_microbatches, loss_fn=_loss)


def multi(name: str, *, num_ranks: int, num_microbatches: int, num_chunks: int = 2, **options: Any) -> Any:
    """A schedule of several stages a rank."""
    stages = _stages(num_ranks, num_chunks, style=MULTI[name])
    return getattr(torch_schedules, name)(stages, num_microbatches, loss_fn=_loss, **options)


def runtime(*, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Any:
    """The runtime that loads a CSV. Its own placement comes from the rows."""
    stages = _stages(num_ranks, num_chunks, style="loop")
    return torch_schedules._PipelineScheduleRuntime(stages, num_microbatches, loss_fn=_loss)


def dump_order(schedule: Any, path: Path) -> None:
    """``pipeline_order`` of any class as PyTorch writes it; the single-stage ones cannot dump themselves."""
    holder: Any = SimpleNamespace(pipeline_order=schedule.pipeline_order)
    torch_schedules.PipelineScheduleMulti._dump_csv(holder, str(path))


def add_send_recv(rows: list[list[str]], *, ranks: list[int]) -> list[list[str]]:
    """PyTorch's lowering of compute-only rows; ``ranks`` is the rank of each stage."""
    parse = torch_schedules._Action.from_str
    actions: Any = {rank: [parse(cell) for cell in row] for rank, row in enumerate(rows)}
    lowered = torch_schedules._add_send_recv(actions, lambda stage: ranks[stage], len(ranks))
    return [list(map(str, lowered[rank])) for rank in range(len(rows))]


def _stages(num_ranks: int, num_chunks: int, *, style: str) -> Any:
    indices = generate_rank_to_stage_mapping(num_ranks, num_ranks * num_chunks, style=style)[0]
    return [Stage(index, num_ranks * num_chunks, num_ranks) for index in indices]


def _loss(output: object, target: object) -> object:
    raise AssertionError("no schedule of a test computes a loss")
