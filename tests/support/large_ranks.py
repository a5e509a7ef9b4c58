"""What `tests/distributed/test_large_messages.py` and `test_accumulation.py` run on launched ranks."""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor, nn

from fullbore.config.run import OptimizerConfig
from fullbore.models.layered import Objective
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model, group

SIDE = 2048
"""A boundary is SIDE x SIDE float32: 16 MiB each way."""

FACTORS = (0.5, 3.0)
SUM = Objective(loss_sum=lambda output, batch: output.sum(), count=lambda batch: batch["inputs"].numel())


class Scale(nn.Module):
    """Multiplies by one weight, after a nap of the given length at most: cheap work on much data."""

    def __init__(self, factor: float, *, nap_s: float, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(factor))
        self._nap_s = nap_s
        self._source = random.Random(seed)

    def forward(self, value: Tensor) -> Tensor:
        if value.device.type != "meta":
            time.sleep(self._source.uniform(0.0, self._nap_s))
        return value * self.weight


def large_messages(worker: Worker, schedule: str, num_microbatches: int, num_steps: int, nap_s: float) -> list[float]:
    """The gradient of this rank's weight after every step."""
    model = nn.Sequential(*(Scale(factor, nap_s=nap_s, seed=index) for index, factor in enumerate(FACTORS)))
    rows = torch.arange(num_microbatches, dtype=torch.float32).repeat_interleave(SIDE)[:, None]
    batch = {"inputs": rows.expand(-1, SIDE)}
    found = []
    with Pipeline(
        model,
        num_microbatches=num_microbatches,
        schedule=schedule,
        objective=SUM,
        device="cpu",
        mesh=group(worker),
    ) as pipeline:
        for _ in range(num_steps):
            pipeline.step(batch)
            (gradient,) = pipeline.gradients().values()
            found.append(float(gradient))
            pipeline.zero_grad()
    return found


def accumulated(worker: Worker, num_steps: int, lr: float) -> tuple[list[float], float, int]:
    """Losses of the steps, this rank's weight at the end, and how many updates its optimizer has counted."""
    batch = {name: torch.cat([tensor, tensor]) for name, tensor in chain_batch().items()}
    losses = []
    with Pipeline(
        chain_model(),
        num_microbatches=4,
        accumulation=2,
        objective=SQUARED_ERROR,
        device="cpu",
        mesh=group(worker),
    ) as pipeline:
        update = MasterOptimizer(pipeline.weights(), config=OptimizerConfig(name="sgd", lr=lr, weight_decay=0.0))
        num_updates = 0
        for _ in range(num_steps):
            losses.append(pipeline.step(batch))
            update.step(pipeline.gradients(), lr=lr)
            num_updates += 1
            pipeline.zero_grad()
        (weight,) = pipeline.weights().values()
        return losses, float(weight), num_updates
