"""Stages of one rank that use the same weight hold one parameter for it, however they were built."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.ids import StageIndex
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import BuiltStage
from fullbore.models.sequential import sequential_model
from fullbore.models.share import share_weights
from tests.unit.models.chained import assert_same, build, run, whole
from tests.unit.models.families import FAMILIES
from tests.unit.models.test_tied import BATCH, OBJECTIVE, chain

NAME = "model.embed_tokens.weight"


def on_one_rank(stages: list[BuiltStage]) -> list[BuiltStage]:
    return list(share_weights({StageIndex(index): stage for index, stage in enumerate(stages)}).values())


def test_embedding_and_head_of_a_tied_model_become_one_parameter() -> None:
    first, between, last = on_one_rank(build(HuggingFaceModel.from_config(FAMILIES["qwen2-tied"]), [0, 2, 4, 6]))
    weight = first.weights[NAME]
    assert last.weights[NAME] is weight
    assert last.module.model.lm_head.weight is weight
    assert NAME not in between.weights
    assert sum(parameter is weight for parameter in last.module.parameters()) == 1
    own = [parameter for stage in (first, between, last) for parameter in stage.weights.values()]
    assert len({id(parameter) for parameter in own}) == len(own) - 1


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_gradients_of_both_stages_meet_in_it(device: str) -> None:
    with torch.device(device):
        model = sequential_model(chain())
    stages = on_one_rank(build(model, [0, 2, 4]))
    unsplit = chain()
    with torch.no_grad():
        for stage in stages:
            for name, weight in stage.weights.items():
                unsplit.get_parameter(name).copy_(weight)
    reference = whole(unsplit, lambda module, batch: module(batch["inputs"]), BATCH, objective=OBJECTIVE)
    assert_same(run(stages, BATCH, objective=OBJECTIVE), reference)
    assert stages[0].weights["0.weight"] is stages[1].weights["0.weight"]


def test_a_module_that_keeps_its_weights_elsewhere_too_is_told() -> None:
    """nn.RNN computes from a list of its own, which must hold the parameter that is trained."""
    with torch.device("meta"):
        recurrent = nn.RNN(4, 4)
        model = sequential_model(nn.Sequential(recurrent, nn.Identity(), recurrent))
    first, last = on_one_rank(build(model, [0, 1, 3]))
    assert first.weights["0.weight_ih_l0"] is last.weights["0.weight_ih_l0"]
    copy = last.layer_modules["2"]
    assert isinstance(copy, nn.RNN)
    assert copy._flat_weights[0] is first.weights["0.weight_ih_l0"]


def test_stages_with_nothing_in_common_stay_as_they_are() -> None:
    stages = build(HuggingFaceModel.from_config(FAMILIES["qwen2-tied"]), [0, 2, 4, 6])[:2]
    before = [dict(stage.weights) for stage in stages]
    assert [dict(stage.weights) for stage in on_one_rank(stages)] == before
