"""A weight that several layers use: one value everywhere, one parameter per stage, one name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Objective, TiedWeight
from fullbore.models.protocol import protocol_model
from fullbore.models.sequential import sequential_model
from tests.unit.models.chained import CPU, build, run, whole
from tests.unit.models.families import FAMILIES, llama

NAME = "model.embed_tokens.weight"


def test_both_ends_start_with_the_owners_value() -> None:
    model = HuggingFaceModel.from_config(FAMILIES["qwen2-tied"])
    assert model.tied == (TiedWeight(NAME, (0, 5)),)
    first, last = build(model, [0, 3, 6])
    assert first.weights[NAME] is not last.weights[NAME]
    assert torch.equal(first.weights[NAME], last.weights[NAME])
    assert last.module.model.lm_head.weight is last.weights[NAME]
    assert "lm_head.weight" not in last.weights


def test_a_stage_with_both_users_has_one_parameter() -> None:
    stage = HuggingFaceModel.from_config(FAMILIES["qwen2-tied"]).build_stage(0, 6, seed=0, device=CPU)
    causal = stage.module.model
    assert causal.lm_head.weight is causal.model.embed_tokens.weight is stage.weights[NAME]
    assert sum(weight is stage.weights[NAME] for weight in stage.weights.values()) == 1


def test_untied_has_none() -> None:
    assert HuggingFaceModel.from_config(llama()).tied == ()


class Unembed(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, value: Tensor) -> Tensor:
        return nn.functional.linear(value, self.weight)


def chain() -> nn.Sequential:
    embed = nn.Embedding(11, 8)
    return nn.Sequential(embed, nn.Linear(8, 8), nn.Tanh(), Unembed(embed.weight))


OBJECTIVE = Objective(
    loss_sum=lambda output, batch: nn.functional.cross_entropy(
        output.flatten(0, 1), batch["targets"].flatten(), reduction="sum"
    ),
    count=lambda batch: batch["targets"].numel(),
)
BATCH = {"inputs": torch.arange(6).reshape(2, 3), "targets": torch.arange(5, 11).reshape(2, 3)}


@pytest.mark.parametrize("cuts", [[0, 4], [0, 2, 4], [0, 1, 3, 4]])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_tying_inside_a_chain(cuts: list[int], device: str) -> None:
    with torch.device(device):
        model = sequential_model(chain())
    assert model.tied == (TiedWeight("0.weight", (0, 3)),)
    unsplit = chain()
    stages = build(model, cuts)
    with torch.no_grad():
        for name, weight in ((name, weight) for stage in stages for name, weight in stage.weights.items()):
            unsplit.get_parameter(name).copy_(weight)
    reference = whole(unsplit, lambda module, batch: module(batch["inputs"]), BATCH, objective=OBJECTIVE)
    result = run(stages, BATCH, objective=OBJECTIVE)
    assert torch.equal(result.output, reference.output)
    for name, gradient in reference.gradients.items():
        torch.testing.assert_close(result.gradients[name], gradient)


def test_one_block_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(4, 4)

        def pipeline_layers(self) -> list[tuple[str, nn.Module]]:
            return [("one", self.block), ("two", self.block)]

    with torch.device("meta"):
        model = protocol_model(Twice())
    assert model.tied == (TiedWeight("block.weight", (0, 1)), TiedWeight("block.bias", (0, 1)))
    both = model.build_stage(0, 2, seed=0, device=CPU)
    first, second = build(model, [0, 1, 2])
    assert list(both.weights) == ["block.weight", "block.bias"]
    assert torch.equal(first.weights["block.weight"], second.weights["block.weight"])
    assert torch.equal(first.weights["block.weight"], both.weights["block.weight"])


def test_a_shared_buffer_is_refused() -> None:
    norm = nn.BatchNorm1d(4)
    with pytest.raises(
        ModelError, match=r"a buffer belongs to one layer, but 1\.running_mean is shared by .*'0' and '1'"
    ):
        sequential_model(nn.Sequential(norm, norm))
