"""MasterOptimizer is torch's optimizer, keeps small updates in bf16, and runs on a stage without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fullbore.config.run import OptimizerConfig
from fullbore.runtime.optimizer import MasterOptimizer

SHAPES = {"linear.weight": (4, 3), "linear.bias": (4,), "norm.weight": (3,), "embed.weight": (5, 3)}


def weights(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()}


def gradients(step: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def torch_reference(config: OptimizerConfig, held: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": [held["linear.weight"], held["embed.weight"]], "weight_decay": config.weight_decay},
        {"params": [held["linear.bias"], held["norm.weight"]], "weight_decay": 0.0},
    ]
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig(),
        OptimizerConfig(betas=(0.8, 0.99), eps=1e-3, weight_decay=0.5),
        OptimizerConfig(name="sgd", weight_decay=0.0),
        OptimizerConfig(name="sgd", momentum=0.9, weight_decay=0.2),
    ],
)
def test_bitwise_equal_to_torch(config: OptimizerConfig, dtype: torch.dtype) -> None:
    ours, theirs = weights(dtype), weights(dtype)
    optimizer, reference = MasterOptimizer(ours, config=config), torch_reference(config, theirs)
    for step, lr in enumerate([0.1, 0.05, 0.2]):
        given = gradients(step, dtype)
        before = {name: gradient.clone() for name, gradient in given.items()}
        optimizer.step(given, lr=lr)
        for group in reference.param_groups:
            group["lr"] = lr
        for name, weight in theirs.items():
            weight.grad = given[name].clone()
        reference.step()
        for name in SHAPES:
            assert torch.equal(ours[name], theirs[name]), name
            assert torch.equal(given[name], before[name]), "a gradient was changed"
            assert ours[name].grad is None


def test_full_precision_weights_are_not_copied() -> None:
    held = weights()
    storage = {name: weight.data_ptr() for name, weight in held.items()}
    optimizer = MasterOptimizer(held, config=OptimizerConfig())
    optimizer.step(gradients(0), lr=0.1)
    assert {name: weight.data_ptr() for name, weight in held.items()} == storage
    assert not [name for name in optimizer.state() if name.endswith(".master")]


def test_many_small_updates_do_not_vanish_in_bf16() -> None:
    """1 - 0.0001 rounds to 1 in bf16, so a hundred updates of a plain bf16 weight leave it where it was."""
    config = OptimizerConfig(name="sgd", weight_decay=0.0)
    plain = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    with torch.no_grad():
        for _ in range(500):
            plain -= 1e-4
    assert torch.equal(plain, torch.ones_like(plain))

    weight = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    optimizer = MasterOptimizer({"w": weight}, config=config)
    for _ in range(500):
        optimizer.step({"w": torch.ones(2, 2)}, lr=1e-4)
    assert weight.dtype == torch.bfloat16
    assert weight.detach().float() == pytest.approx(torch.full((2, 2), 0.95), abs=0.004)
    assert optimizer.state()["w.master"] == pytest.approx(torch.full((2, 2), 0.95), abs=1e-5)


def test_bf16_masters_follow_the_float32_run_exactly() -> None:
    low = weights(torch.bfloat16)
    high = {name: nn.Parameter(weight.detach().float()) for name, weight in low.items()}
    ours, reference = MasterOptimizer(low, config=OptimizerConfig()), MasterOptimizer(high, config=OptimizerConfig())
    for step in range(5):
        ours.step(gradients(step), lr=0.01)
        reference.step(gradients(step), lr=0.01)
    for name, weight in high.items():
        assert torch.equal(ours.state()[f"{name}.master"], weight)
        assert torch.equal(low[name], weight.to(torch.bfloat16))


def test_decay_is_for_weights_of_two_dimensions_or_more() -> None:
    held = weights()
    before = {name: weight.detach().clone() for name, weight in held.items()}
    optimizer = MasterOptimizer(held, config=OptimizerConfig(weight_decay=0.5))
    optimizer.step({name: torch.zeros(shape) for name, shape in SHAPES.items()}, lr=0.1)
    for name, weight in held.items():
        assert torch.equal(weight, before[name] * (0.95 if weight.dim() >= 2 else 1.0)), name


def test_a_stage_without_trainable_weights_steps_and_does_nothing() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    for held in ({}, {"frozen": frozen}):
        optimizer = MasterOptimizer(held, config=OptimizerConfig())
        optimizer.step({}, lr=0.1)
        assert optimizer.state() == {}
    assert torch.equal(frozen, torch.ones(2))


def test_a_weight_without_a_gradient_keeps_its_value_and_state() -> None:
    held = weights()
    before = held["norm.weight"].detach().clone()
    optimizer = MasterOptimizer(held, config=OptimizerConfig())
    given = gradients(0)
    del given["norm.weight"]
    optimizer.step(given, lr=0.1)
    assert torch.equal(held["norm.weight"], before)
    assert optimizer.state()["norm.weight.step"] == 0
    assert optimizer.state()["linear.weight.step"] == 1


def test_a_sparse_gradient_updates_as_a_dense_one() -> None:
    """Moments and decay are of all rows, whichever were looked up."""
    ends = []
    for sparse in (False, True):
        held = weights()
        optimizer = MasterOptimizer(held, config=OptimizerConfig(lr=0.1))
        gradient = gradients(1)["embed.weight"]
        optimizer.step({"embed.weight": gradient.to_sparse(1) if sparse else gradient}, lr=0.1)
        ends.append(held["embed.weight"].detach())
    assert torch.equal(*ends)


def test_a_gradient_is_used_once() -> None:
    held = weights()
    optimizer = MasterOptimizer(held, config=OptimizerConfig(name="sgd", weight_decay=0.0))
    optimizer.step(gradients(0), lr=0.1)
    before = {name: weight.detach().clone() for name, weight in held.items()}
    optimizer.step({}, lr=0.1)
    for name, weight in held.items():
        assert torch.equal(weight, before[name]), name


def test_a_gradient_of_an_unknown_weight_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"does not hold: \['other'\]"):
        MasterOptimizer(weights(), config=OptimizerConfig()).step({"other": torch.ones(1)}, lr=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [OptimizerConfig(), OptimizerConfig(name="sgd", momentum=0.9)])
def test_state_copied_into_a_fresh_optimizer_continues_the_run(config: OptimizerConfig, dtype: torch.dtype) -> None:
    straight, resumed = weights(dtype), weights(dtype)
    first = MasterOptimizer(straight, config=config)
    for step in range(3):
        first.step(gradients(step), lr=0.1)

    second = MasterOptimizer(resumed, config=config)
    assert second.state().keys() == first.state().keys()
    for name, tensor in second.state().items():
        tensor.copy_(first.state()[name])
    if dtype is torch.float32:
        for name, weight in resumed.items():
            weight.data.copy_(straight[name])
    second.publish()
    for step in range(3, 6):
        first.step(gradients(step), lr=0.1)
        second.step(gradients(step), lr=0.1)
    for name in SHAPES:
        assert torch.equal(straight[name], resumed[name]), name
