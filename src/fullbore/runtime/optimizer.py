"""MasterOptimizer: torch's AdamW or SGD over a stage's weights, with float32 masters for reduced-precision ones.

A bf16 weight has 8 bits of mantissa: an update below 1/256 of it is rounded away, and training stands still. So the
update happens on a float32 master, and the weight is a rounded copy of it (P. Micikevicius et al., "Mixed Precision
Training", arXiv 1710.03740, section 3.1). A float32 or float64 weight is its own master; nothing is copied.

Gradients arrive by name and not through ``Parameter.grad``: whoever accumulates and clips them owns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.config.run import OptimizerConfig

__all__ = ["MasterOptimizer"]


class MasterOptimizer:
    """The optimizer of one rank. A rank without trainable weights has one too, and its steps do nothing."""

    def __init__(self, weights: Mapping[str, nn.Parameter], *, config: OptimizerConfig) -> None:
        """``weights``: full name -> parameter. Frozen ones are left alone; decay is for two dimensions or more."""
        self._weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
        self._masters = {name: _master(weight) for name, weight in self._weights.items()}
        decayed = [master for master in self._masters.values() if master.dim() >= 2]
        others = [master for master in self._masters.values() if master.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": masters, "weight_decay": decay}
            for masters, decay in ((decayed, config.weight_decay), (others, 0.0))
            if masters
        ]
        self._optimizer = _torch_optimizer(groups, config=config) if groups else None

    def step(self, gradients: Mapping[str, Tensor], *, lr: float) -> None:
        """One update. A weight without a gradient keeps its value and its state."""
        unknown = gradients.keys() - self._masters.keys()
        assert not unknown, f"gradients of weights this optimizer does not hold: {sorted(unknown)}"
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for name, gradient in gradients.items():
            master = self._masters[name]
            assert gradient.shape == master.shape, (name, gradient.shape, master.shape)
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            master.grad = dense.detach().to(dtype=master.dtype)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Rounds the masters into the weights they stand for; call it after changing `state` from outside."""
        for name, weight in self._weights.items():
            master = self._masters[name]
            if master.dtype != weight.dtype:
                weight.copy_(master)

    def state(self) -> dict[str, Tensor]:
        """The live tensors a checkpoint saves, and loads in place: ``NAME.master`` and ``NAME.exp_avg`` and so on.

        Complete before the first step, so that a fresh optimizer can be loaded into. Keys are weights' full names:
        the same for every number of stages.
        """
        found = {}
        for name, master in self._masters.items():
            if master.dtype != self._weights[name].dtype:
                found[f"{name}.master"] = master
            if self._optimizer is not None:
                for key, value in self._optimizer.state[master].items():
                    found[f"{name}.{key}"] = value
        return found


def _master(weight: nn.Parameter) -> Tensor:
    """A float32 copy, or the weight's own storage without its ``grad``."""
    data = weight.detach()
    return data.to(torch.float32) if data.dtype in (torch.bfloat16, torch.float16) else data


def _torch_optimizer(groups: list[dict[str, Any]], *, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW or SGD with the state of every weight in place, as their own first step would make it."""
    optimizer: torch.optim.Optimizer
    if config.name == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    else:
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    for group in optimizer.param_groups:
        for master in group["params"]:
            if config.name == "adamw":
                optimizer.state[master] = {
                    "step": torch.zeros((), dtype=torch.float32),
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                }
            elif config.momentum:
                optimizer.state[master] = {"momentum_buffer": torch.zeros_like(master)}
    return optimizer
