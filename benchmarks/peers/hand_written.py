"""The loop that one writes by hand: 1F1B in fifty lines, no name, no check, nothing recorded.

Receives block, sends do not; what has been sent is waited for at the end. Shapes are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["HandWritten"]


class HandWritten:
    """One rank of a chain of ranks. ``loss``: (output, target) -> scalar, on the last."""

    def __init__(
        self,
        module: nn.Module,
        *,
        rank: int,
        num_ranks: int,
        shape: Sequence[int],
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self._module = module
        self._rank = rank
        self._num_ranks = num_ranks
        self._shape = tuple(shape)
        self._loss = loss
        self._sends: list[dist.Work | None] = []
        self._kept: deque[tuple[Tensor, Tensor]] = deque()

    def step(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        """Forward and backward of all microbatches; their losses on the last rank."""
        total, downstream = len(inputs), self._num_ranks - 1 - self._rank
        warmup, losses = min(downstream, total), []
        for index in range(warmup):
            losses += self._forward(inputs[index], targets[index])
        for index in range(warmup, total):
            losses += self._forward(inputs[index], targets[index])
            self._backward()
        for _ in range(warmup):
            self._backward()
        for work in self._sends:
            assert work is not None
            work.wait()
        self._sends.clear()
        return losses

    def _forward(self, given: Tensor, target: Tensor) -> list[Tensor]:
        if self._rank:
            given = torch.empty(self._shape)
            dist.recv(given, self._rank - 1)
            given.requires_grad_()
        output = self._module(given)
        if self._rank < self._num_ranks - 1:
            self._sends.append(dist.isend(output.detach(), self._rank + 1))
            self._kept.append((given, output))
            return []
        loss = self._loss(output, target)
        self._kept.append((given, loss))
        return [loss.detach()]

    def _backward(self) -> None:
        given, output = self._kept.popleft()
        gradient = None
        if self._rank < self._num_ranks - 1:
            gradient = torch.empty(self._shape)
            dist.recv(gradient, self._rank + 1)
        output.backward(gradient)
        if self._rank:
            assert given.grad is not None
            self._sends.append(dist.isend(given.grad, self._rank - 1))
