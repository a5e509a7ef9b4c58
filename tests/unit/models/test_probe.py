"""The probe: what a model hands from layer to layer by other ways than its arguments is found, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.hugging_face.taint import Taint
from fullbore.models.load import layered
from tests.unit.models.families import llama

BLOCK = modeling_llama.LlamaDecoderLayer


def changed_block(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """``change`` (block, hidden) -> hidden, after each block."""
    inner = BLOCK.forward

    def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Any:
        return change(self, inner(self, hidden_states, **kwargs))

    monkeypatch.setattr(BLOCK, "forward", forward)


def test_a_value_left_in_a_global_place_is_missed_by_the_next_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    left: dict[str, Tensor] = {}

    def through_a_global(block: Any, hidden: Tensor) -> Tensor:
        index = block.self_attn.layer_idx
        found = hidden if index == 0 else hidden + left["hidden"]
        left["hidden"] = hidden
        return found

    changed_block(monkeypatch, through_a_global)
    with pytest.raises(
        ModelError,
        match=r"llama cannot be split exactly before layers\.0 and layers\.2 and head: .* what model\.layers\.2 gives",
    ):
        HuggingFaceModel.from_config(llama())


def test_a_gradient_that_goes_another_way_is_named_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses alone prove nothing: here the forward is right and a gradient is lost."""
    left: dict[str, Tensor] = {}

    def lost_gradient(block: Any, hidden: Tensor) -> Tensor:
        index = block.self_attn.layer_idx
        if index == 1:
            left["hidden"] = hidden
        if index == 3:
            return hidden + (left["hidden"] - left["hidden"].detach())
        return hidden

    changed_block(monkeypatch, lost_gradient)
    with pytest.raises(
        ModelError, match=r"differs from the whole model in (what|the gradient of) model\.layers\.[123]"
    ):
        HuggingFaceModel.from_config(llama())


def test_a_weight_used_outside_of_its_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = modeling_llama.LlamaModel.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = inner(self, *args, **kwargs)
        output.last_hidden_state = output.last_hidden_state @ self.layers[0].self_attn.q_proj.weight
        return output

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", forward)
    with pytest.raises(ModelError, match="llama cannot be split"):
        HuggingFaceModel.from_config(llama())


def test_it_does_not_touch_the_model_or_the_random_state() -> None:
    model = AutoModelForCausalLM.from_config(llama())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    state = torch.get_rng_state()
    HuggingFaceModel(model)
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_labels_follow_integers_views_and_writes_in_place() -> None:
    """An index that a layer chose has no gradient, and depends on its weights all the same."""
    with torch.no_grad():
        taint = Taint[str]()
        with taint:
            one, other = torch.arange(4.0), torch.arange(4.0)
            taint.mark(one, frozenset("a"))
            taint.mark(other, frozenset("b"))
            index = one.topk(2).indices
            plain = torch.zeros(4)
            written = torch.zeros(4)
            written[:2] = other[2:]
            joined = torch.cat([index.float(), written])
    assert taint.of([index]) == {"a"}
    assert taint.of([plain]) == frozenset()
    assert taint.of([written]) == {"b"}
    assert taint.of([joined]) == {"a", "b"}


def test_a_model_in_which_nothing_trains_can_be_split() -> None:
    """It can be evaluated."""
    model = AutoModelForCausalLM.from_config(llama())
    model.requires_grad_(False)
    assert layered(model).layer_names[-1] == "head"
