"""Where models enter: adapters by kind, run-file sections, pretrained folders, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from fullbore.config.run import ModelConfig
from fullbore.errors import ModelError
from fullbore.models.chain import ChainModel
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.load import layered, load_model
from tests.unit.models.chained import CPU, build
from tests.unit.models.families import FAMILIES, llama

HERE = "tests.unit.models.test_load"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)


class Looped(nn.Sequential):
    def forward(self, value: Any) -> Any:
        return super().forward(super().forward(value))


def make_sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def make_config() -> Any:
    return llama()


def make_plain() -> nn.Module:
    return Plain()


def make_nothing() -> None:
    raise KeyError("no such file")


def test_the_adapter_follows_the_kind() -> None:
    assert isinstance(layered(nn.Sequential(nn.Linear(2, 2))), ChainModel)
    found = layered(llama(), dtype=torch.float64)
    assert isinstance(found, HuggingFaceModel)
    assert layered(found) is found
    assert "float64" in found.description


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Plain(), r"test_load\.Plain cannot be split .*make it an nn.Sequential, or give it a pipeline_layers"),
        (Looped(nn.Linear(2, 2)), r"test_load\.Looped cannot be split"),
        ("gpt2", r"a model is an nn.Module, .*given builtins\.str"),
    ],
)
def test_other_kinds_are_refused_by_name(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        layered(model)


def make_and_forget() -> None:
    nn.Sequential(nn.Linear(2, 2))


def test_the_built_in_model() -> None:
    model = load_model(ModelConfig(), vocab_size=300)
    assert isinstance(model, HuggingFaceModel)
    assert len(model.layer_names) == 10
    assert model.num_parameters >= 5_000_000
    assert model.config.vocab_size == 300
    small = load_model(ModelConfig(config={"num_hidden_layers": 2}, dtype="bfloat16"))
    assert small.layer_names == ("embed", "layers.0", "layers.1", "head")
    assert "bfloat16" in small.description


def test_factories() -> None:
    assert isinstance(load_model(ModelConfig(factory=f"{HERE}:make_sequential")), ChainModel)
    made = load_model(ModelConfig(factory=f"{HERE}:make_config", config={"num_hidden_layers": 1}))
    assert made.layer_names == ("embed", "layers.0", "head")


def test_a_factory_gives_every_rank_the_same_weights_and_leaves_the_random_state() -> None:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    one = load_model(ModelConfig(factory=f"{HERE}:make_sequential"), seed=4).build_stage(0, 1, seed=0, device=CPU)
    torch.manual_seed(1)
    two = load_model(ModelConfig(factory=f"{HERE}:make_sequential"), seed=4).build_stage(0, 1, seed=0, device=CPU)
    assert torch.equal(one.weights["0.weight"], two.weights["0.weight"])
    torch.set_rng_state(state)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"config": {"num_hiden_layers": 2}}, "no 'num_hiden_layers' .*did you mean 'num_hidden_layers'"),
        ({"hf": "nowhere/at-all"}, "local folder with a config.json .nowhere/at-all has none."),
        ({"factory": "no.such:thing"}, "'no.such:thing' cannot be imported"),
        ({"factory": f"{HERE}:make_and_forget"}, "make_and_forget' returns None; have it return the model"),
        ({"factory": f"{HERE}:make_nothing"}, "failed: KeyError: 'no such file'"),
        ({"factory": f"{HERE}:make_plain"}, "Plain cannot be split"),
        ({"factory": f"{HERE}:make_sequential", "dtype": "float64"}, "model.dtype is float64, .*0.weight in float32"),
        ({"factory": f"{HERE}:make_sequential", "config": {"a": 1}}, "overrides a Hugging Face configuration"),
    ],
)
def test_sections_that_cannot_be_met(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(ModelConfig(**section))


def test_a_vocabulary_too_small_for_the_tokenizer() -> None:
    with pytest.raises(ModelError, match="tokenizer has 100 tokens, but the model's vocabulary is 97"):
        load_model(ModelConfig(factory=f"{HERE}:make_config"), vocab_size=100)


def test_overriding_the_number_of_blocks_keeps_the_pattern_of_the_rest(tmp_path: Path) -> None:
    FAMILIES["gemma2"].save_pretrained(tmp_path)
    model = load_model(ModelConfig(hf=str(tmp_path), config={"num_hidden_layers": 3}))
    assert isinstance(model, HuggingFaceModel)
    assert model.config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    with pytest.raises(ModelError, match="4 listed, num_hidden_layers=5"):
        load_model(ModelConfig(hf=str(tmp_path), config={"num_hidden_layers": 5}))


@pytest.fixture
def saved(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(FAMILIES[request.param])
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path, dict(model.named_parameters())


@pytest.mark.parametrize("saved", ["llama", "qwen2-tied", "gemma2"], indirect=True)
def test_pretrained_weights_are_read_per_stage(saved: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, expected = saved
    assert (folder / "model.safetensors.index.json").is_file()
    model = load_model(ModelConfig(hf=str(folder), from_pretrained=True))
    stages = build(model, [0, 2, 6])
    found = {name: weight for stage in stages for name, weight in stage.weights.items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    for tied in model.tied:
        assert torch.equal(stages[0].weights[tied.name], stages[1].weights[tied.name])
    assert not any(buffer.isnan().any() for stage in stages for buffer in stage.buffers.values())


def single_file(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("model-*.safetensors")):
        tensors |= load_file(shard)
        shard.unlink()
    (folder / "model.safetensors.index.json").unlink()
    return tensors


@pytest.mark.parametrize("saved", ["llama"], indirect=True)
def test_checkpoints_that_do_not_fit(saved: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, _ = saved
    tensors = single_file(folder)
    section = ModelConfig(hf=str(folder), from_pretrained=True)
    with pytest.raises(ModelError, match="has neither"):
        load_model(section)
    save_file(tensors, folder / "model.safetensors")
    load_model(section).build_stage(0, 6, seed=0, device=CPU)
    save_file({**tensors, "model.extra.weight": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"holds the tensor model\.extra\.weight, which the model does not have"):
        load_model(section)
    save_file({k: v for k, v in tensors.items() if k != "model.norm.weight"}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks the tensor model\.norm\.weight"):
        load_model(section)
    save_file({**tensors, "model.norm.weight": torch.ones(5)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight .* is \[5\], but the configuration makes it \[32\]"):
        load_model(section).build_stage(4, 6, seed=0, device=CPU)


@pytest.mark.parametrize("saved", ["gpt_neox"], indirect=True)
def test_checkpoints_that_transformers_renames_are_refused(saved: tuple[Path, dict[str, torch.Tensor]]) -> None:
    with pytest.raises(ModelError, match=r"lacks the tensor lm_head\.weight; .* stored names differ"):
        load_model(ModelConfig(hf=str(saved[0]), from_pretrained=True))


@pytest.mark.parametrize("saved", ["qwen2-tied"], indirect=True)
def test_a_tied_weight_may_be_stored_under_either_name(saved: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, expected = saved
    tensors = single_file(folder)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors")
    stage = load_model(ModelConfig(hf=str(folder), from_pretrained=True)).build_stage(0, 1, seed=0, device=CPU)
    assert torch.equal(stage.weights["model.embed_tokens.weight"], expected["model.embed_tokens.weight"])


def test_a_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-family"}), encoding="utf-8")
    with pytest.raises(ModelError, match="transformers cannot read"):
        load_model(ModelConfig(hf=str(tmp_path)))
