"""Checkpoints that run when they are told to: once, as the forward was, and the backward takes what they have made."""

from __future__ import annotations

import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.checkpoints import Checkpoints, Watch, require_checkpoints
from fullbore.models.layered import BuiltStage
from fullbore.models.recompute import apply_recompute
from fullbore.models.sequential import sequential_model
from tests.unit.models.chained import CPU


class Exponential(nn.Module):
    """What it keeps for its backward is the value in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.float64)
        self.made: list[weakref.ref[Tensor]] = []

    def forward(self, value: Tensor) -> Tensor:
        middle = torch.exp(self.linear(value))
        self.made.append(weakref.ref(middle.untyped_storage()))  # type: ignore[arg-type]
        return middle.sin()

    @property
    def kept(self) -> list[bool]:
        """Is what each forward has made still there?"""
        return [one() is not None for one in self.made]


def stage(num_layers: int = 2) -> tuple[BuiltStage, list[Exponential], Watch]:
    torch.manual_seed(2)
    layers = [Exponential() for _ in range(num_layers)]
    built = sequential_model(nn.Sequential(*layers)).build_stage(0, num_layers, seed=0, device=CPU)
    watch = Watch()
    apply_recompute(built, built.layers, around=lambda _: nullcontext(), watch=watch)
    return built, [module for module in built.module.modules() if isinstance(module, Exponential)], watch


BATCH = {"inputs": torch.linspace(0, 1, 8, dtype=torch.float64).reshape(2, 4)}


def gradients(built: BuiltStage) -> list[Tensor]:
    found = [weight.grad for weight in built.weights.values()]
    return [gradient for gradient in found if gradient is not None]


def test_nothing_is_kept_from_forward_to_run_and_everything_from_run_to_backward() -> None:
    built, layers, watch = stage()
    checkpoints = Checkpoints()
    with watch.during(checkpoints):
        output = built.module(None, BATCH)
    assert [layer.kept for layer in layers] == [[False], [False]]
    checkpoints.run()
    assert [layer.kept for layer in layers] == [[False, True], [False, True]]
    checkpoints.run()
    with checkpoints.used():
        output.sum().backward()
    assert [layer.kept for layer in layers] == [[False, False], [False, False]], "run again once, and let go of"
    inside, others, _ = stage()
    inside.module(None, BATCH).sum().backward()
    assert [len(layer.made) for layer in others] == [2, 2]
    assert all(torch.equal(*pair) for pair in zip(gradients(built), gradients(inside), strict=True))
    assert len(gradients(built)) == 4


def test_microbatches_do_not_mix() -> None:
    built, layers, watch = stage(1)
    both = [Checkpoints(), Checkpoints()]
    outputs = []
    for factor, checkpoints in enumerate(both, start=1):
        with watch.during(checkpoints):
            outputs.append(built.module(None, {"inputs": factor * BATCH["inputs"]}))
    both[1].run()
    assert layers[0].kept == [False, False, True]
    with both[0].used():
        outputs[0].sum().backward()
    assert layers[0].kept == [False, False, True, False], "one that has not run, runs in its backward"
    with both[1].used():
        outputs[1].sum().backward()
    assert layers[0].kept == [False] * 4


def test_outside_of_a_forward_that_is_watched_all_is_as_ever() -> None:
    built, layers, watch = stage(1)
    checkpoints = Checkpoints()
    with watch.during(checkpoints), torch.no_grad():
        built.module(None, BATCH)
    checkpoints.run()
    assert len(layers[0].made) == 1, "without gradients nothing is run again"
    built.module(None, BATCH).sum().backward()
    assert len(layers[0].made) == 3


def test_a_layer_in_which_nothing_trains_is_not_run_again() -> None:
    built, layers, watch = stage(2)
    layers[0].requires_grad_(False)
    checkpoints = Checkpoints()
    with watch.during(checkpoints):
        output = built.module(None, BATCH)
    checkpoints.run()
    with checkpoints.used():
        output.sum().backward()
    assert [len(layer.made) for layer in layers] == [1, 2]


def test_a_pytorch_that_cannot_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_checkpoints()
    names = [name for name in torch.utils.checkpoint.__all__ if name != "GraphExecGroup"]
    monkeypatch.setattr("torch.utils.checkpoint.__all__", names)
    with pytest.raises(ModelError, match=r"GraphExecGroup, which PyTorch has from 2\.10 on \(this is .*\); update it"):
        require_checkpoints()
