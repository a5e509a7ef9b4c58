"""Runs stages one after the other in this process, cut off from each other as they are on different ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.models.enter import enter
from fullbore.models.layered import BuiltStage, LayeredModel, Microbatch, Objective, Parcel

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    output: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]


def build(model: LayeredModel, cuts: Sequence[int], *, seed: int = 0) -> list[BuiltStage]:
    """Stages between the given layers; ``[0, 3, 6]`` is two stages of three layers."""
    return [model.build_stage(first, end, seed=seed, device=CPU) for first, end in itertools.pairwise(cuts)]


def run(stages: Sequence[BuiltStage], microbatch: Microbatch, *, objective: Objective) -> Result:
    """Forward, then backward from stage to stage; gradients by full name, a tied weight's summed over its uses."""
    value: Any = None
    crossings: list[tuple[Parcel, Parcel]] = []
    for stage in stages:
        if value is not None:
            received = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in value)
            crossings.append((value, received))
            value = tuple(enter(leaf) if leaf.requires_grad else leaf for leaf in received)
        value = stage.module(value, microbatch)
    loss = objective.loss_sum(value, microbatch)
    loss.backward()
    for sent, received in reversed(crossings):
        pairs = [(tensor, leaf.grad) for tensor, leaf in zip(sent, received, strict=True) if leaf.grad is not None]
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
    gradients: dict[str, Tensor] = {}
    seen: set[int] = set()
    for stage in stages:
        for name, weight in stage.weights.items():
            if weight.grad is not None and id(weight) not in seen:
                seen.add(id(weight))
                gradients[name] = gradients[name] + weight.grad if name in gradients else weight.grad.clone()
    return Result(value.detach(), loss.detach(), gradients)


def whole(model: nn.Module, call: Any, microbatch: Microbatch, *, objective: Objective) -> Result:
    """The same of an unsplit module."""
    model.zero_grad()
    value = call(model, microbatch)
    loss = objective.loss_sum(value, microbatch)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return Result(value.detach(), loss.detach(), gradients)


def assert_same(result: Result, reference: Result) -> None:
    """The same bits: output, loss and every gradient."""
    assert torch.equal(result.output, reference.output)
    assert torch.equal(result.loss, reference.loss)
    assert result.gradients.keys() == reference.gradients.keys()
    for name, gradient in reference.gradients.items():
        torch.testing.assert_close(result.gradients[name], gradient, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
        assert gradient.abs().max() > 0, f"{name} has a zero gradient: nothing is compared"
