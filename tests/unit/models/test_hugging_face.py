"""A stage chain is the unsplit model: the same logits and every gradient the same, bit for bit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, HrmTextConfig, OPTConfig, XGLMConfig

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from tests.unit.models.chained import CPU, assert_same, build, run, whole
from tests.unit.models.families import FAMILIES, llama, logits_of, microbatch, plain


@pytest.mark.parametrize("family", FAMILIES)
def test_two_and_three_stages_equal_the_unsplit_model(family: str) -> None:
    config, batch = FAMILIES[family], microbatch()
    model = HuggingFaceModel.from_config(config)
    reference = whole(plain(config, model), logits_of, batch, objective=model.objective)
    for cuts in ([0, 3, 6], [0, 2, 4, 6]):
        assert_same(run(build(model, cuts), batch, objective=model.objective), reference)


@pytest.mark.parametrize("cuts", [[0, 6], [0, 1, 6], [0, 5, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_any_contiguous_range_is_a_stage(cuts: list[int]) -> None:
    config, batch = FAMILIES["gemma2"], microbatch()
    model = HuggingFaceModel.from_config(config)
    reference = whole(plain(config, model), logits_of, batch, objective=model.objective)
    assert_same(run(build(model, cuts), batch, objective=model.objective), reference)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox"])
def test_masks_and_positions_reach_every_stage(family: str) -> None:
    config = FAMILIES[family]
    batch = microbatch(padded=True, positions=True)
    model = HuggingFaceModel.from_config(config)
    unsplit = plain(config, model)
    reference = whole(unsplit, logits_of, batch, objective=model.objective)
    without = whole(unsplit, logits_of, microbatch(), objective=model.objective)
    assert not torch.equal(reference.output, without.output)
    assert_same(run(build(model, [0, 2, 4, 6]), batch, objective=model.objective), reference)


def test_float64() -> None:
    config, batch = FAMILIES["llama"], microbatch()
    model = HuggingFaceModel.from_config(config, dtype=torch.float64)
    reference = whole(plain(config, model), logits_of, batch, objective=model.objective)
    result = run(build(model, [0, 2, 4, 6]), batch, objective=model.objective)
    assert result.loss.dtype == torch.float64
    assert_same(result, reference)


@pytest.mark.parametrize("family", FAMILIES)
def test_buffers_are_those_of_a_plain_construction(family: str) -> None:
    model = HuggingFaceModel.from_config(FAMILIES[family])
    expected = dict(plain(FAMILIES[family], model).named_buffers())
    found = {name: buffer for stage in build(model, [0, 2, 4, 6]) for name, buffer in stage.buffers.items()}
    assert found.keys() == expected.keys()
    for name, buffer in expected.items():
        assert torch.equal(found[name], buffer), name
        assert found[name].dtype == buffer.dtype, name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_familys_own_initialisation_is_used(family: str) -> None:
    config = FAMILIES[family]
    torch.manual_seed(0)
    drawn = dict(AutoModelForCausalLM.from_config(config).named_parameters())
    stage = HuggingFaceModel.from_config(config).build_stage(0, 6, seed=0, device=CPU)
    for name, weight in stage.weights.items():
        assert weight.requires_grad == drawn[name].requires_grad
        if drawn[name].numel() > 1000:
            assert weight.detach().std().item() == pytest.approx(drawn[name].detach().std().item(), rel=0.15), name
        elif drawn[name].unique().numel() == 1:
            assert torch.equal(weight, drawn[name]), name


def test_a_model_with_weights_keeps_them() -> None:
    config, batch = FAMILIES["qwen2-tied"], microbatch()
    torch.manual_seed(3)
    unsplit = AutoModelForCausalLM.from_config(config).train()
    model = HuggingFaceModel(unsplit)
    stages = build(model, [0, 3, 6])
    own = dict(unsplit.named_parameters())
    assert all(weight is own[name] for stage in stages for name, weight in stage.weights.items())
    reference = whole(unsplit, logits_of, batch, objective=model.objective)
    unsplit.zero_grad()
    assert_same(run(stages, batch, objective=model.objective), reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_whole_model_is_what_transformers_builds(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    state = torch.get_rng_state()
    model, batch = HuggingFaceModel.from_config(FAMILIES["gemma2"], dtype=dtype), microbatch(padded=True)
    whole_model = model.whole()
    assert torch.equal(torch.get_rng_state(), state)
    stages = build(model, [0, 2, 4, 6])
    own = dict(whole_model.module.named_parameters())
    with torch.no_grad():
        for stage in stages:
            for name, weight in stage.weights.items():
                own[name].copy_(weight)
    reference = whole(whole_model.module, lambda _, given: whole_model.call(given), batch, objective=model.objective)
    assert_same(run(stages, batch, objective=model.objective), reference)


def test_boundary_is_what_crosses() -> None:
    model = HuggingFaceModel.from_config(FAMILIES["llama"], dtype=torch.bfloat16)
    stage = model.build_stage(0, 3, seed=0, device=CPU)
    (sent,) = stage.module(None, microbatch())
    (spec,) = model.boundary(3, microbatch()).tensors
    assert (spec.shape, spec.dtype) == ((2, 10, 32), torch.bfloat16) == (tuple(sent.shape), sent.dtype)


@pytest.mark.parametrize("shape", [(10,), (1, 2, 10), ()])
def test_tokens_of_another_shape_are_refused_with_it(shape: tuple[int, ...]) -> None:
    model = HuggingFaceModel.from_config(FAMILIES["llama"])
    given = rf"'input_ids' of a microbatch is \[samples, length\] \(given shape {re.escape(str(list(shape)))}\)"
    with pytest.raises(ModelError, match=given):
        model.boundary(3, {"input_ids": torch.zeros(shape, dtype=torch.long)})


def test_names() -> None:
    model = HuggingFaceModel.from_config(FAMILIES["gptj"])
    assert model.layer_names == ("embed", "h.0", "h.1", "h.2", "h.3", "head")
    assert model.description.startswith("gptj: 6 layers (embed, 4 blocks, head), ")
    stage = model.build_stage(4, 6, seed=0, device=CPU)
    assert set(stage.layer_modules) == {"h.3"}
    assert list(stage.weights)[-4:] == [
        "transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight", "lm_head.bias"
    ]  # fmt: skip


def test_a_stage_holds_only_its_own_weights() -> None:
    stage = HuggingFaceModel.from_config(FAMILIES["llama"]).build_stage(2, 4, seed=0, device=CPU)
    assert {name.split(".")[2] for name, _ in stage.module.model.named_parameters()} == {"1", "2"}
    assert not any(p.device.type == "meta" for p in (*stage.module.parameters(), *stage.module.buffers()))


REFUSED = [
    (XGLMConfig(), "xglm has no pipeline plan"),
    (HrmTextConfig(), r"hrm_text cannot be cut between its layers: .*nested loops"),
    (OPTConfig(layerdrop=0.1), r"opt leaves out layers at random \(layerdrop=0\.1\).*set layerdrop to 0"),
    (GPT2Config(n_layer=0), r"needs at least one block \(transformer\.h of GPT2LMHeadModel has none\)"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[entry[0].model_type for entry in REFUSED])
def test_what_cannot_be_split_exactly_is_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        HuggingFaceModel.from_config(config)


def test_a_plan_of_unknown_form_is_refused() -> None:
    config = llama()
    config.base_model_pp_plan = {"layers": ([], []), "norm": ([], [])}
    with pytest.raises(ModelError, match="that of llama is layers, norm"):
        HuggingFaceModel.from_config(config)


def test_a_weight_that_the_configuration_does_not_build_is_refused() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(llama())
        model.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM is not what its configuration builds: model\.extra\."):
        HuggingFaceModel(model)


def test_a_weight_outside_of_all_modules_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(llama())
    model.model.scale = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ModelError, match=r"but model\.scale of LlamaForCausalLM does not; write a module"):
        HuggingFaceModel(model)


def test_blocks_called_out_of_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(llama())
    kind = type(model.model)
    inner = kind.forward

    def twice(self: Any, **kwargs: Any) -> Any:
        hidden = inner(self, **kwargs).last_hidden_state
        return inner(self, **{**kwargs, "input_ids": None, "inputs_embeds": hidden})

    monkeypatch.setattr(kind, "forward", twice)
    with pytest.raises(ModelError, match="does not call each block once and in order"):
        HuggingFaceModel(model)


def test_a_missing_input_is_named() -> None:
    model = HuggingFaceModel.from_config(llama())
    stage = model.build_stage(0, 6, seed=0, device=CPU)
    with pytest.raises(ModelError, match=r"every stage reads 'input_ids' from each microbatch .it holds tokens."):
        stage.module(None, {"tokens": torch.zeros(1, 2)})
