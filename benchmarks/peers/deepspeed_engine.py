"""DeepSpeed's pipeline engine, on the CPU and over gloo, in the process group that is there.

The first use compiles a small extension (a minute, cached). Needs `pip install fullbore[bench]`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DeepSpeedPipeline"]


class DeepSpeedPipeline:
    """One rank's engine, with its rule that cuts by counts of layers.

    ``loss``: (output, target) -> the *mean* loss of a microbatch; DeepSpeed divides by the number of microbatches.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        num_ranks: int,
        num_microbatches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        learning_rate: float,
    ) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed
        from deepspeed.pipe import PipelineModule

        deepspeed.init_distributed("gloo")
        module = PipelineModule(list(layers), num_stages=num_ranks, loss_fn=loss, partition_method="uniform")
        settings = {
            "train_batch_size": num_microbatches,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": num_microbatches,
            "steps_per_print": 10**9,
        }
        optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
        self._engine: Any = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)[0]
        self.layers_per_stage = [b - a for a, b in zip(module.parts, module.parts[1:], strict=False)]

    def step(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> float:
        """Forward, backward and optimizer; the mean loss, on every rank."""
        pairs: Iterator[tuple[Tensor, Tensor]] = iter(list(zip(inputs, targets, strict=True)))
        return float(self._engine.train_batch(pairs))
