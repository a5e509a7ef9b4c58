"""LoRA by peft: only adapters train, under their own names, on whichever stage they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from fullbore.config.run import ModelConfig
from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.load import layered, load_model
from tests.unit.models.families import FAMILIES, microbatch
from tests.unit.models.hf_parity import assert_parity, gradients_of

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # by peft

HERE = "tests.unit.models.test_adapters"


def adapted(family: str = "llama", **more: Any) -> Any:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]).train()
    config = LoraConfig(r=4, lora_alpha=8, **{"target_modules": ["q_proj", "v_proj"], **more})
    wrapped = get_peft_model(model, config).double()
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.5)
    return wrapped


def make_adapted() -> Any:
    return adapted()


@pytest.mark.parametrize("family", ["llama", "qwen2-tied"])
@pytest.mark.parametrize("cuts", [[0, 3, 6], [0, 1, 2, 4, 5, 6]])
def test_the_adapters_gradients_and_no_others(family: str, cuts: list[int]) -> None:
    wrapped = adapted(family)
    model = layered(wrapped)
    assert isinstance(model, HuggingFaceModel)
    names = {name for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    staged = assert_parity(model, cuts, microbatch(), number=2)
    assert gradients_of(staged).keys() == names
    assert len(names) == 16
    assert set(staged.weights) == set(dict(wrapped.named_parameters()))


def test_adapters_on_the_last_blocks_only_ask_for_no_gradient_before() -> None:
    model = layered(adapted(layers_to_transform=[2, 3]))
    wanted = [model.boundary(layer, microbatch()).tensors[0].gradient for layer in range(1, 6)]
    assert wanted == [False, False, False, True, True]
    assert_parity(model, [0, 2, 4, 6], microbatch())  # type: ignore[arg-type]


def test_adapters_of_a_large_model_are_tried_on_a_small_one() -> None:
    """The copy has the same adapters, so which boundaries ask for a gradient follows from it."""
    config = FAMILIES["llama"].from_dict({**FAMILIES["llama"].to_dict(), "vocab_size": 40_000})
    base = AutoModelForCausalLM.from_config(config)
    model = layered(get_peft_model(base, LoraConfig(r=2, target_modules=["o_proj"], layers_to_transform=[3])))
    wanted = [model.boundary(layer, microbatch()).tensors[0].gradient for layer in range(1, 6)]
    assert wanted == [False, False, False, False, True]


def test_a_factory_gives_one() -> None:
    model = load_model(ModelConfig(factory=f"{HERE}:make_adapted", dtype="float64"))
    assert model.layer_names == ("embed", "layers.0", "layers.1", "layers.2", "layers.3", "head")


def test_what_changes_the_inputs_is_refused() -> None:
    base = AutoModelForCausalLM.from_config(FAMILIES["llama"])
    prompted = get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ModelError, match="PROMPT_TUNING puts tokens in front of the inputs; use LoRA"):
        layered(prompted)


def test_adapters_on_the_meta_device_are_refused() -> None:
    with torch.device("meta"):
        wrapped = get_peft_model(
            AutoModelForCausalLM.from_config(FAMILIES["llama"]), LoraConfig(r=2, target_modules=["q_proj"])
        )
    with pytest.raises(ModelError, match="a model with adapters comes with its weights"):
        layered(wrapped)
