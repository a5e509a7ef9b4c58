"""The reference: one process, the unsplit model as its author wrote it, plain PyTorch.

Nothing here touches a schedule, a stage, a transport or a master weight: `loss.backward()`,
`torch.nn.utils.clip_grad_norm_`, `torch.optim`. It runs the same microbatches in the same order, and every layer draws
its random numbers by the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fullbore.config.run import OptimizerConfig
from fullbore.models.auxiliary import collecting, num_samples
from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.models.randomness import RandomKeys, apply_keys

__all__ = ["Observed", "copies", "load", "run_reference"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a few training steps leave behind. Tensors go by full names, on the CPU."""

    losses: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    """Of the first step, before clipping."""

    parameters: Mapping[str, Tensor]
    """After the last step."""

    buffers: Mapping[str, Tensor]
    """After the last step: running statistics, and whatever else a module keeps."""


def run_reference(
    model: LayeredModel,
    batches: Sequence[Sequence[Microbatch]],
    *,
    objective: Objective,
    initial: Mapping[str, Tensor],
    optimizer: OptimizerConfig,
    device: torch.device,
    seed: int = 0,
    training: bool = True,
    at_step: Callable[[int], None] | None = None,
) -> Observed:
    """Train ``batches`` (steps of microbatches) from the initial tensors (weights and buffers by full name).

    Args:
        seed: of the random keys.
        training: in training mode; otherwise in evaluation mode, with gradients all the same.
        at_step: told each step, from 1, as it begins.
    """
    whole = model.whole()
    whole.module.to(device)
    if not training:
        whole.module.eval()
    keys = RandomKeys(seed, device=device)
    apply_keys(whole.parts, keys)
    weights = load(whole.module, initial)
    update = _torch_optimizer(weights, optimizer)
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for step, microbatches in enumerate(batches):
        if at_step is not None:
            at_step(step + 1)
        count = sum(objective.count(microbatch) for microbatch in microbatches)
        rows = sum(num_samples(microbatch) for microbatch in microbatches)
        total = 0.0
        for index, given in enumerate(microbatches):
            microbatch = {name: tensor.to(device) for name, tensor in given.items()}
            with keys.during(step=step + 1, microbatch=index), collecting() as added:
                loss = objective.loss_sum(whole.call(microbatch), microbatch) / count
                for value in added:
                    loss = loss + value * (num_samples(microbatch) / rows)
                if loss.requires_grad:
                    torch.autograd.backward(loss)
            total += float(loss.detach())
        losses.append(total)
        if step == 0:
            first = {name: w.grad.to("cpu", copy=True) for name, w in weights.items() if w.grad is not None}
        torch.nn.utils.clip_grad_norm_(list(weights.values()), optimizer.clip_norm)
        update.step()
        update.zero_grad()
    return Observed(tuple(losses), first, copies(weights), copies(dict(whole.module.named_buffers())))


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, as they are now."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


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
