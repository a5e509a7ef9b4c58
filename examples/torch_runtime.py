"""A schedule file in PyTorch's own runtime: ``torchrun --nproc-per-node 2 examples/torch_runtime.py zb-v.csv``.

Stages lie in a V, as ``ZBVZeroBubble`` wants them: with p ranks, stage s and stage 2p - 1 - s share a rank.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

MICROBATCHES = 4

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # every rank makes the same layers and the same batch, and keeps its own stages
layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2 * ranks)]
inputs, targets = torch.randn(8, 8), torch.randn(8, 8)

mine = [rank, 2 * ranks - 1 - rank]
stages = [PipelineStage(layers[stage], stage, 2 * ranks, torch.device("cpu")) for stage in mine]
loss_fn = nn.MSELoss(reduction="sum")
schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss_fn, scale_grads=False)
schedule._load_csv(sys.argv[1])

losses = []  # one a microbatch, on the rank of the last stage: in a V rank 0, which holds the first as well
schedule.step(inputs, target=targets, losses=losses) if rank == 0 else schedule.step()
if rank == 0:
    print(f"loss {sum(losses).item():.4f} over {MICROBATCHES} microbatches")
dist.destroy_process_group()
