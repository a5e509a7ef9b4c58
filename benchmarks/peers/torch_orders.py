"""torch.distributed.pipelining with several stages a rank: its own classes, and its runtime with a file's order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Overlap, Schedule
from fullbore.ir.torch_write import format_torch_csv

__all__ = ["CLASSES", "TorchOrder", "order_of_class"]

_Place = Callable[[int], Placement]

CLASSES: Mapping[str, _Place] = MappingProxyType(
    {
        "Interleaved1F1B": lambda ranks: Placement.loop(ranks, num_chunks=2),
        "InterleavedZeroBubble": lambda ranks: Placement.loop(ranks, num_chunks=2),
        "ZBVZeroBubble": lambda ranks: Placement.snake(ranks, num_chunks=2),
        "DualPipeV": lambda ranks: Placement.snake(ranks, num_chunks=2),
    }
)
"""PyTorch's multi-stage schedules, without their prefix, and where their two stages a rank lie."""


def order_of_class(name: str, *, num_ranks: int, num_microbatches: int) -> Schedule:
    """What the class would run, as a schedule. It looks at sizes only, so bare records stand for stages."""
    placement = CLASSES[name](num_ranks)
    stages = [_Stage(stage, placement.num_stages, num_ranks) for stage in placement.stages_of(Rank(0))]
    made = getattr(schedules, f"Schedule{name}")(stages, num_microbatches, loss_fn=_no_loss)
    return _order_of(made, placement, num_microbatches=num_microbatches, name=name)


class TorchOrder:
    """One rank's end of a class of PyTorch's, or of its runtime with the CSV of a schedule, on the default group.

    ``modules``: by stage. ``loss``: (last stage's output, target) -> scalar; gradients are not divided by the number of
    microbatches, and outputs are not kept.

    Raises:
        AssertionError: PyTorch would run another order than ``schedule``.
    """

    def __init__(
        self,
        modules: Mapping[StageIndex, nn.Module],
        *,
        schedule: Schedule,
        name: str | None,
        loss: Callable[[Tensor, Any], Tensor],
    ) -> None:
        cpu, last = torch.device("cpu"), schedule.num_stages - 1
        stages = [PipelineStage(module, int(stage), schedule.num_stages, cpu) for stage, module in modules.items()]
        made = schedules._PipelineScheduleRuntime if name is None else getattr(schedules, f"Schedule{name}")
        self._schedule = made(stages, schedule.num_microbatches, loss_fn=loss, scale_grads=False)
        if name is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "order.csv"
                path.write_bytes(format_torch_csv(schedule).encode())
                self._schedule._load_csv(str(path))
        theirs = _order_of(
            self._schedule, schedule.placement, num_microbatches=schedule.num_microbatches, name=schedule.name
        )
        assert theirs.orders == schedule.orders, f"PyTorch runs another order than {schedule.name}"
        self._first, self._last = 0 in modules, last in modules

    def step(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Forward and backward of one batch; the losses of the microbatches on the rank of the last stage."""
        losses: list[Tensor] = []
        given = (inputs,) if self._first else ()
        ending = {"target": targets, "losses": losses} if self._last else {}
        self._schedule.step(*given, return_outputs=False, **ending)
        return losses


def _order_of(made: Any, placement: Placement, *, num_microbatches: int, name: str) -> Schedule:
    """Its ``pipeline_order``; what shares a cell stands one after the other, and is noted as a pair."""
    orders: list[tuple[Compute, ...]] = []
    pairs: set[Overlap] = set()
    for rank in range(placement.num_ranks):
        row: list[Compute] = []
        for cell in made.pipeline_order[rank]:
            if cell is None:
                continue
            actions = list(_actions([cell] if cell.sub_actions is None else cell.sub_actions))
            if len(actions) > 1:
                pairs.add(Overlap(*actions))
            row += actions
        orders.append(tuple(row))
    return Schedule(name, placement, num_microbatches, tuple(orders), overlaps=frozenset(pairs))


def _actions(cells: Iterable[Any]) -> Iterable[Compute]:
    for cell in cells:
        kind = Kind(cell.computation_type.value)
        yield Compute(StageIndex(cell.stage_index), kind, MicrobatchIndex(cell.microbatch_index))


@dataclass
class _Stage:
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


def _no_loss(output: object, target: object) -> Sequence[object]:
    raise AssertionError("an order is read and not run")
