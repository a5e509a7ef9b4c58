"""Weights come from (seed, layer name) alone: the same for every cut, and no two layers alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import LayeredModel
from fullbore.models.materialize import layer_seed
from fullbore.models.sequential import sequential_model
from tests.unit.models.chained import build
from tests.unit.models.families import FAMILIES

CUTS = {1: [0, 6], 2: [0, 3, 6], 3: [0, 1, 5, 6], 4: [0, 2, 3, 4, 6], 6: [0, 1, 2, 3, 4, 5, 6]}


def four_linears(*, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(8, 8, dtype=dtype) for _ in range(4)))


def weights(model: LayeredModel, cuts: list[int], *, seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: weight for stage in build(model, cuts, seed=seed) for name, weight in stage.weights.items()}


@pytest.mark.parametrize("family", ["llama", "qwen2-tied", "gpt_neox", "mixtral"])
def test_the_same_bits_for_every_cut(family: str) -> None:
    model = HuggingFaceModel.from_config(FAMILIES[family])
    expected = weights(model, CUTS[1])
    for cuts in CUTS.values():
        found = weights(model, cuts)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("cuts", [[0, 4], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_identical_layers_do_not_start_identical(cuts: list[int]) -> None:
    """pytorch/pytorch #139304: each stage initialised from the same seed starts with the same weights."""
    found = weights(sequential_model(four_linears()), cuts, seed=1234)
    expected = weights(sequential_model(four_linears()), [0, 4], seed=1234)
    matrices = [found[f"{layer}.weight"] for layer in range(4)]
    for index, one in enumerate(matrices):
        assert torch.equal(one, expected[f"{index}.weight"])
        assert not any(torch.equal(one, other) for other in matrices[index + 1 :])


def test_the_seed_matters_and_the_same_seed_repeats() -> None:
    model = sequential_model(four_linears())
    one, again, other = (weights(model, [0, 4], seed=seed)["0.weight"] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert layer_seed(1, layer="10") != layer_seed(11, layer="0")


def test_bfloat16_is_the_float32_draw_rounded_and_float64_widened() -> None:
    config = FAMILIES["llama"]
    single = weights(HuggingFaceModel.from_config(config), CUTS[2])
    for dtype in (torch.bfloat16, torch.float64):
        cast = weights(HuggingFaceModel.from_config(config, dtype=dtype), CUTS[3])
        assert all(torch.equal(cast[name], single[name].to(dtype)) for name in single)


def test_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    weights(HuggingFaceModel.from_config(FAMILIES["gemma2"]), CUTS[2])
    weights(sequential_model(four_linears()), [0, 4])
    assert torch.equal(torch.get_rng_state(), before)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(8))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.factor


def test_a_parameter_that_nothing_initialises_is_named() -> None:
    with torch.device("meta"):
        model = sequential_model(nn.Sequential(nn.Linear(8, 8), Scale()))
    with pytest.raises(ModelError, match=r"nothing sets 1\.factor of layer '1' \(Scale\); give .* reset_parameters"):
        build(model, [0, 2])


def test_half_meta_is_refused() -> None:
    with pytest.raises(ModelError, match=r"wholly on the meta device or wholly real .*0\.weight is on meta"):
        sequential_model(nn.Sequential(nn.Linear(8, 8, device="meta"), nn.Linear(8, 8)))


def test_lazy_parameters_are_refused() -> None:
    with pytest.raises(ModelError, match=r"0\.weight of Sequential is lazy"):
        sequential_model(nn.Sequential(nn.LazyLinear(8)))
