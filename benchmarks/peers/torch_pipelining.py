"""torch.distributed.pipelining: its own schedule classes on the default process group, used as documented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

__all__ = ["TorchPipeline"]


class TorchPipeline:
    """One rank's end of PyTorch's 1F1B (one module) or interleaved 1F1B (several), stages placed in a loop.

    ``loss``: (last stage's output, target) -> scalar. Losses are sums here: gradients are not divided by the number of
    microbatches. Logits are not kept.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        rank: int,
        num_ranks: int,
        num_microbatches: int,
        loss: Callable[[Tensor, Any], Tensor],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        num_stages = num_ranks * len(modules)
        cpu = torch.device("cpu")
        self.stages = [
            PipelineStage(module, rank + chunk * num_ranks, num_stages, cpu, group=group)
            for chunk, module in enumerate(modules)
        ]
        self.schedule: Schedule1F1B | ScheduleInterleaved1F1B
        if len(modules) == 1:
            self.schedule = Schedule1F1B(self.stages[0], num_microbatches, loss_fn=loss, scale_grads=False)
        else:
            self.schedule = ScheduleInterleaved1F1B(self.stages, num_microbatches, loss_fn=loss, scale_grads=False)
        self._first = rank == 0
        self._last = rank == num_ranks - 1

    def step(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Forward and backward of one batch; the losses of the microbatches on the last rank, else nothing."""
        losses: list[Tensor] = []
        given = (inputs,) if self._first else ()
        ending = {"target": targets, "losses": losses} if self._last else {}
        self.schedule.step(*given, return_outputs=False, **ending)
        return losses
