"""The reference: one process, the unsplit model as its author wrote it, plain PyTorch.

Nothing here touches a schedule, a stage, a transport or a master weight: `loss.backward()`,
`torch.nn.utils.clip_grad_norm_`, `torch.optim`. It runs the same microbatches in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fullbore.config.run import OptimizerConfig
from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.verify.stochastic import without_dropout

__all__ = ["Observed", "run_reference"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a few training steps leave behind. Tensors go by full names, on the CPU."""

    losses: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    """Of the first step, before clipping."""

    parameters: Mapping[str, Tensor]
    """After the last step."""


def run_reference(
    model: LayeredModel,
    batches: Sequence[Sequence[Microbatch]],
    *,
    objective: Objective,
    initial: Mapping[str, Tensor],
    optimizer: OptimizerConfig,
    device: torch.device,
) -> Observed:
    """Train ``batches`` (steps of microbatches) from the initial tensors (weights and buffers by full name)."""
    whole = model.whole()
    without_dropout(whole.module.to(device))
    weights = load(whole.module, initial)
    update = _torch_optimizer(weights, optimizer)
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for step, microbatches in enumerate(batches):
        count = sum(objective.count(microbatch) for microbatch in microbatches)
        total = 0.0
        for given in microbatches:
            microbatch = {name: tensor.to(device) for name, tensor in given.items()}
            loss_sum = objective.loss_sum(whole.call(microbatch), microbatch)
            torch.autograd.backward(loss_sum / count)
            total += float(loss_sum.detach())
        losses.append(total / count)
        if step == 0:
            first = {name: w.grad.to("cpu", copy=True) for name, w in weights.items() if w.grad is not None}
        torch.nn.utils.clip_grad_norm_(list(weights.values()), optimizer.clip_norm)
        update.step()
        update.zero_grad()
    return Observed(
        tuple(losses), first, {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}
    )


def load(module: nn.Module, initial: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """Copy values in by name; the parameters by name, a tied one once."""
    weights = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in (*weights.items(), *module.named_buffers()):
            if name in initial:
                tensor.copy_(initial[name])
    return weights


def _torch_optimizer(weights: Mapping[str, nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    trained = [weight for weight in weights.values() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in trained if weight.dim() < 2], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
