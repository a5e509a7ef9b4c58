"""A user's own loop under torchrun that evaluates whenever it likes; every rank writes what it was told.

torchrun --nproc-per-node 2 own_evaluation.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import fullbore

OBJECTIVE = fullbore.Objective(
    loss_sum=lambda output, batch: ((output - batch["targets"]) ** 2).sum(),
    count=lambda batch: batch["targets"].numel(),
)


def batch(samples: int, *, seed: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return {name: torch.randn(samples, 4, generator=drawn) for name in ("inputs", "targets")}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    with fullbore.Pipeline(model, num_microbatches=4, objective=OBJECTIVE, device="cpu") as pipeline:
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
        told = [pipeline.evaluate(batch(8, seed=9))]
        for step in range(2):
            told.append(pipeline.step(batch(10, seed=step)))
            told.append(pipeline.evaluate(batch(8, seed=9)))
            told.append(
                pipeline.evaluate([batch(3, seed=9), batch(1, seed=8)], outputs=lambda output, _: output.sum(1))
            )
            sizes = [len(output) for output in pipeline.outputs()]
            optimizer.step()
            pipeline.zero_grad()
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps({"told": told, "sizes": sizes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
