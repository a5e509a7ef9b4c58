"""A model after some steps with its backwards whole or in two halves: what is compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_queue import WeightQueue


def squares(output: Tensor) -> Tensor:
    return output.square().sum()


def taught(
    model: nn.Module,
    deferral: Deferral | None,
    *,
    steps: int = 2,
    loss_of: Callable[[Tensor], Tensor] = squares,
) -> list[Tensor]:
    """Losses, gradients and buffers of a model, after backwards in two halves if there is a deferral."""
    found = []
    for step in range(steps):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), requires_grad=True)
        if deferral is None:
            loss = loss_of(model(x))
            loss.backward()
        else:
            deferral.begin()
            with deferral.during():
                loss = loss_of(model(x))
            queue = WeightQueue()
            with deferral.during(queue):
                loss.backward()
            queue.run()
        assert x.grad is not None
        found += [loss.detach(), x.grad]
    for weight in model.parameters():
        found.append(torch.zeros(0) if weight.grad is None else weight.grad)
    return [*found, *model.buffers()]


def assert_same(made: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one, other)
