"""The loss scale follows torch's rule, and float16 gradients come out of their accumulators as true ones."""

from __future__ import annotations

import json
import random

import pytest
import torch
from torch import nn

from fullbore.models.sequential import sequential_model
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.loss_scale import LossScaler
from tests.support.staged import Staged, sliced


def test_the_scale_is_that_of_torch() -> None:
    """Random overflows, one in forty: growth, backoff and the count between them."""
    source = random.Random(3)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=20)
    ours = LossScaler(growth_interval=20)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    seen = set()
    for _ in range(400):
        finite = source.random() > 1 / 40
        weight.grad = torch.tensor([1.0 if finite else float("inf")])
        theirs.scale(torch.zeros(1))
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite=finite)
        assert ours.scale == theirs.get_scale()
        seen.add(ours.scale)
    assert min(seen) < 2.0**16 < max(seen)


def test_a_scaler_restored_from_a_state_goes_on_as_the_original_would() -> None:
    """Saved at every place within a growth interval, before and after an overflow."""
    steps = [True, True, True, False, True, True, True, True, True, True, True]
    for saved_after in range(len(steps)):
        original = LossScaler(growth_interval=3)
        for finite in steps[:saved_after]:
            original.update(finite=finite)
        restored = LossScaler(scale=1.0, growth_interval=3)
        restored.update(finite=True)  # what it has counted itself does not stay
        restored.load(json.loads(json.dumps(original.state())))
        assert restored.scale == original.scale
        scales = []
        for finite in steps[saved_after:]:
            original.update(finite=finite)
            restored.update(finite=finite)
            assert restored.scale == original.scale, f"saved after {saved_after} steps"
            scales.append(restored.scale)
        assert scales[-1] == 2.0**18, "grown, halved, and grown twice"


def test_gradients_that_float16_cannot_hold_arrive() -> None:
    """1e-8 is zero in float16; with the loss times 65536 it is not, and the accumulator holds 1e-8 again."""
    for scale, expected in ((1.0, 0.0), (2.0**16, 1e-8)):
        weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
        store = GradientStore({"w": weight}, scaled=True)
        store.loss_scale = scale
        for _ in range(2):
            ((weight * 1.0).float().sum() * (1e-8 * scale)).backward()
        assert store.gradients()["w"].dtype == torch.float32
        assert store.gradients()["w"].item() == pytest.approx(2 * expected, rel=1e-3)
        assert weight.grad is None


def test_wide_weights_beside_float16_ones_are_unscaled_too_and_scales_may_change_between_steps() -> None:
    weight = nn.Parameter(torch.ones(1))
    store = GradientStore({"w": weight}, scaled=True)
    for scale in (8.0, 4.0):
        store.loss_scale = scale
        (weight.sum() * scale).backward()
    assert store.gradients()["w"].item() == 2.0
    assert store.of("w").item() == 2.0
    taken = store.take("w")
    assert taken is not None
    assert store.gradients() == {}


def test_a_scaled_stage_gives_the_gradients_of_an_unscaled_one() -> None:
    """A power of two loses no bit, at any cut."""
    torch.manual_seed(1)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    batch = {"inputs": torch.randn(8, 8), "targets": torch.randn(8, 8)}
    plain = Staged(sequential_model(module), [0, 2, 4])
    loss = plain.step([sliced(batch, 4)])
    gradients = {name: gradient.clone() for name, gradient in plain.store.gradients().items()}
    plain.store.clear()
    plain.store.close()
    plain.store = GradientStore(plain.weights, scaled=True)
    assert plain.step([sliced(batch, 4)], loss_scale=2.0**10) == loss
    for name, gradient in plain.store.gradients().items():
        assert torch.equal(gradient, gradients[name])
