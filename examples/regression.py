"""An ``nn.Sequential`` and a loss of your own: ``torchrun --nproc-per-node 2 examples/regression.py``."""

import torch
from torch import nn

import fullbore

torch.manual_seed(0)  # every rank makes the same model and the same batches
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
squares = fullbore.Objective(
    loss_sum=lambda output, microbatch: (output - microbatch["targets"]).square().sum(),
    count=lambda microbatch: len(microbatch["targets"]),
)

with fullbore.Pipeline(model, num_microbatches=4, schedule="auto", objective=squares) as pipeline:
    optimizer = torch.optim.Adam(pipeline.parameters(), lr=1e-2)
    for _ in range(100):
        points = torch.rand(64, 2)
        loss = pipeline.step({"inputs": points, "targets": points.prod(dim=1, keepdim=True)})
        optimizer.step()
        pipeline.zero_grad()
    torch.save(dict(pipeline.weights()), f"weights-{pipeline.rank}.pt")  # the weights of this rank's stages
    if pipeline.rank == 0:
        print(f"loss {loss:.4f} after 100 steps")
