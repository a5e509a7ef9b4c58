"""Recomputation: the same gradients from one more forward, each shown through the caller's context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from fullbore.errors import ConfigError, ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Objective
from fullbore.models.recompute import apply_recompute
from fullbore.models.sequential import sequential_model
from tests.unit.models.chained import CPU, assert_same, build, run
from tests.unit.models.families import FAMILIES, microbatch

BLOCKS = ("layers.0", "layers.1", "layers.2", "layers.3")


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_same_gradients_and_exactly_one_extra_forward(family: str) -> None:
    model, batch = HuggingFaceModel.from_config(FAMILIES[family]), microbatch()
    reference = run(build(model, [0, 3, 6]), batch, objective=model.objective)
    stages = build(model, [0, 3, 6])
    seen: list[str] = []
    forwards: list[str] = []

    @contextmanager
    def around(layer: str) -> Iterator[None]:
        seen.append(f"+{layer}")
        yield
        seen.append(f"-{layer}")

    for stage in stages:
        names = [name for name in BLOCKS if name in stage.layers]
        apply_recompute(stage, names, around=around)
        for name in names:
            norm = stage.layer_modules[name].input_layernorm
            norm.register_forward_hook(lambda *_, name=name: forwards.append(name))
    assert_same(run(stages, batch, objective=model.objective), reference)
    assert sorted(forwards) == sorted([*BLOCKS, *BLOCKS])
    order = ("layers.3", "layers.2", "layers.1", "layers.0")
    assert seen == [mark for name in order for mark in (f"+{name}", f"-{name}")]


def test_every_parameter_of_the_first_block_has_a_gradient_though_its_input_needs_none() -> None:
    """fairseq #3583: the re-entrant form gives None here."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    stage = sequential_model(module).build_stage(0, 2, seed=0, device=CPU)
    apply_recompute(stage, stage.layers, around=lambda _: nullcontext())
    stage.module(None, {"inputs": torch.ones(2, 4)}).sum().backward()
    assert all(weight.grad is not None for weight in stage.weights.values())


def test_dropout_is_the_same_in_both_forwards() -> None:
    objective = Objective(loss_sum=lambda output, _: output.square().sum(), count=lambda _: 1)
    batch = {"inputs": torch.ones(8, 16)}
    with torch.device("meta"):
        model = sequential_model(nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16))))
    torch.manual_seed(3)
    plain = run(build(model, [0, 2]), batch, objective=objective)
    after = torch.get_rng_state()
    stages = build(model, [0, 2])
    apply_recompute(stages[0], ["1"], around=lambda _: nullcontext())
    torch.manual_seed(3)
    assert_same(run(stages, batch, objective=objective), plain)
    assert torch.equal(torch.get_rng_state(), after)


def test_names_stay_and_nothing_is_kept() -> None:
    model, batch = HuggingFaceModel.from_config(FAMILIES["llama"]), microbatch()
    stage = model.build_stage(0, 6, seed=0, device=CPU)
    before = list(stage.module.state_dict())
    kept: dict[bool, int] = {}
    for recompute in (False, True):
        if recompute:
            apply_recompute(stage, BLOCKS, around=lambda _: nullcontext())
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            stage.module(None, batch)
        kept[recompute] = sum(sizes)
    assert list(stage.module.state_dict()) == before
    assert kept[True] < kept[False] / 3


def test_without_gradients_and_twice_applied_it_does_not_recompute_more() -> None:
    stage = sequential_model(nn.Sequential(nn.Linear(4, 4))).build_stage(0, 1, seed=0, device=CPU)
    calls: list[Any] = []
    for _ in range(2):
        apply_recompute(stage, ["0"], around=lambda layer: calls.append(layer) or nullcontext())  # type: ignore[func-returns-value]
    with torch.no_grad():
        stage.module(None, {"inputs": torch.ones(2, 4)})
    assert calls == []
    stage.module(None, {"inputs": torch.ones(2, 4)}).sum().backward()
    assert calls == ["0"]


def test_a_failing_recomputation_is_seen_by_the_context() -> None:
    class Once(nn.Module):
        calls = 0

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("second forward")
            return value * value

    failures: list[str] = []

    @contextmanager
    def around(layer: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            failures.append(f"{layer}: {error}")
            raise

    stage = sequential_model(nn.Sequential(nn.Linear(4, 4), Once())).build_stage(0, 2, seed=0, device=CPU)
    apply_recompute(stage, ["1"], around=around)
    with pytest.raises(RuntimeError, match="second forward"):
        stage.module(None, {"inputs": torch.ones(2, 4)}).sum().backward()
    assert failures == ["1: second forward"]


def test_unknown_names_and_layers_of_several_modules_are_refused() -> None:
    stage = HuggingFaceModel.from_config(FAMILIES["llama"]).build_stage(2, 6, seed=0, device=CPU)
    with pytest.raises(ConfigError, match=r"recompute .*\('layer\.3' is none of them\); did you mean 'layers\.3'\?"):
        apply_recompute(stage, ["layer.3"], around=lambda _: nullcontext())
    with pytest.raises(
        ModelError, match="layer 'head' is not one module and cannot be recomputed; this stage can: lay"
    ):
        apply_recompute(stage, ["head"], around=lambda _: nullcontext())
