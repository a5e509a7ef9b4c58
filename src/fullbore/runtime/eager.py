"""Engines on eager PyTorch: one that trains with autograd, one that only evaluates.

Between forward and backward a stage holds its input (a leaf) and the *gradient edge* of its output, not the
output: the tensor itself belongs to whoever sends it, so its storage goes as soon as it is sent. This is what
Megatron-LM does by emptying the tensor (`deallocate_output_tensor`), without touching anybody's storage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fullbore.errors import ModelError
from fullbore.ids import MicrobatchIndex
from fullbore.ir.action import Kind
from fullbore.models.enter import enter
from fullbore.models.layered import Microbatch, Objective

__all__ = ["EagerEngine", "EvaluationEngine"]


@dataclass(frozen=True, slots=True)
class _Stash:
    """What one microbatch leaves between its forward and its backward."""

    root: GradientEdge | Tensor | None
    """Where backward starts: the output's edge, the loss on the last stage, None where nothing needs a gradient."""

    leaf: Tensor | None


class EagerEngine:
    """Trains one stage. ``objective`` is given to the last stage only."""

    kinds = frozenset({Kind.FORWARD, Kind.BACKWARD})

    def __init__(self, module: nn.Module, *, objective: Objective | None) -> None:
        self._module = module
        self._objective = objective
        self._stash: dict[MicrobatchIndex, _Stash] = {}
        self._global_count = 0
        self.loss_sum: Tensor | None = None
        """What the last stage's losses add up to so far, on the stage's device: reading it is for after the step."""

    def begin(self, global_count: int) -> None:
        """Start a step whose loss is a mean over ``global_count`` items of the whole global batch."""
        assert not self._stash, "a microbatch of the last step has had no backward"
        self._global_count = global_count
        self.loss_sum = None

    @property
    def num_live(self) -> int:
        return len(self._stash)

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Tensor | None) -> Tensor | None:
        leaf = None if carried is None else carried.detach()
        if leaf is not None and (leaf.is_floating_point() or leaf.is_complex()):
            leaf.requires_grad_()
        with torch.enable_grad():
            entered = leaf if leaf is None or not leaf.requires_grad else enter(leaf)
            output: Tensor = self._module(entered, microbatch)
            if self._objective is None:
                root = get_gradient_edge(output) if output.requires_grad else None
                self._stash[index] = _Stash(root, leaf)
                return output.detach().contiguous()
            loss_sum = _checked(self._objective.loss_sum(output, microbatch), output)
            loss = loss_sum / self._global_count if self._global_count else loss_sum * 0.0
        self._stash[index] = _Stash(loss if loss.requires_grad else None, leaf)
        self.loss_sum = _added(self.loss_sum, loss_sum)
        return None

    def backward(self, index: MicrobatchIndex, gradient: Tensor | None) -> Tensor | None:
        stash = self._stash.pop(index)
        if stash.root is not None:
            torch.autograd.backward(stash.root, gradient)
        if stash.leaf is None:
            return None
        taken, stash.leaf.grad = stash.leaf.grad, None
        return torch.zeros_like(stash.leaf) if taken is None else taken.contiguous()


class EvaluationEngine:
    """Runs forward only, in evaluation mode, and sums the loss on the last stage. Keeps no activation."""

    kinds = frozenset({Kind.FORWARD})
    num_live = 0

    def __init__(self, module: nn.Module, *, objective: Objective | None) -> None:
        self._module = module
        self._objective = objective
        self.loss_sum: Tensor | None = None
        self._modes: dict[nn.Module, bool] = {}

    def begin(self) -> None:
        """Start a new sum, and put every module into evaluation mode until `end`."""
        self.loss_sum = None
        self._modes = {part: part.training for part in self._module.modules()}
        self._module.eval()

    def end(self) -> None:
        """Give every module the mode it had; parts may differ (a frozen BatchNorm)."""
        for part, training in self._modes.items():
            part.training = training
        self._modes = {}

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Tensor | None) -> Tensor | None:
        del index
        with torch.no_grad():
            output: Tensor = self._module(carried, microbatch)
            if self._objective is None:
                return output.contiguous()
            loss_sum = self._objective.loss_sum(output, microbatch)
        self.loss_sum = _added(self.loss_sum, loss_sum)
        return None

    def backward(self, index: MicrobatchIndex, gradient: Tensor | None) -> Tensor | None:
        raise AssertionError("an evaluation schedule has no backward")


def _checked(loss_sum: Tensor, output: Tensor) -> Tensor:
    """A loss that backward can start from. Raises ModelError for a vector, or one cut off from the output."""
    if loss_sum.numel() != 1:
        raise ModelError(
            f"Objective.loss_sum gives one number, the sum over counted items (given shape {list(loss_sum.shape)}); "
            "use .sum()"
        )
    if output.requires_grad and not loss_sum.requires_grad:
        raise ModelError("Objective.loss_sum gives a number without a gradient; do not detach it or take .item()")
    return loss_sum.reshape(())


def _added(total: Tensor | None, loss_sum: Tensor) -> Tensor:
    """In float64, and without waiting for the device."""
    wide = loss_sum.detach().double()
    return wide if total is None else total + wide
