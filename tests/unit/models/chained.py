"""Runs stages one after the other in this process, cut off from each other as they are on different ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.models.enter import enter
from fullbore.models.layered import BuiltStage, LayeredModel, Microbatch, Objective

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
    value: Tensor | None = None
    passed: list[tuple[Tensor | None, Tensor]] = []
    for stage in stages:
        given = None if value is None else value.detach().requires_grad_()
        value = stage.module(given if given is None else enter(given), microbatch)
        passed.append((given, value))
    assert value is not None
    loss = objective.loss_sum(value, microbatch)
    loss.backward()
    for (given, _), (_, sent) in zip(reversed(passed[1:]), reversed(passed[:-1]), strict=True):
        assert given is not None
        sent.backward(given.grad)
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
