"""Families whose layers share more than hidden states, that scale their embeddings, or that have no plan: exact too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    Gemma3nTextConfig,
    GlmMoeDsaConfig,
    GPT2Config,
    GraniteConfig,
    MixtralConfig,
    MixtralForCausalLM,
    NanoChatConfig,
    OPTConfig,
    OPTForCausalLM,
)

from fullbore.errors import ModelError
from fullbore.models.auxiliary import collecting
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.hugging_face.shrink import certain, narrow, shallow
from fullbore.models.hugging_face.task import task_of
from fullbore.models.layered import Boundary, Microbatch
from tests.unit.models.families import SIZES, VOCABULARY, microbatch
from tests.unit.models.hf_parity import assert_parity

GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 64}
OPT = {"vocab_size": VOCABULARY, "hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 2, "num_hidden_layers": 4}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def small(config: Any) -> Any:
    return certain(narrow(shallow(config, 4)))


CONFIGS: dict[str, Any] = {
    "granite": GraniteConfig(**SIZES, embedding_multiplier=12.0, logits_scaling=3.0, residual_multiplier=0.5),
    "gpt2": GPT2Config(**GPT2, embd_pdrop=0.2, attn_pdrop=0.2, resid_pdrop=0.2),
    "opt": OPTConfig(**OPT, word_embed_proj_dim=16, dropout=0.2),
    "bloom": BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=4, n_head=2, hidden_dropout=0.2),
    "nanochat": small(NanoChatConfig()),
    "glm_moe_dsa": small(GlmMoeDsaConfig()),
    "gemma3n_text": small(Gemma3nTextConfig()),
    "router-loss": MixtralConfig(**SIZES, **EXPERTS, output_router_logits=True, router_aux_loss_coef=0.7),
}


def made(family: str, **more: Any) -> HuggingFaceModel:
    return HuggingFaceModel.from_config(CONFIGS[family], dtype=torch.float64, **more)


@pytest.mark.parametrize("cuts", [[0, 3, 6], [0, 1, 4, 5, 6]])
@pytest.mark.parametrize("family", CONFIGS)
def test_every_gradient_equals_that_of_the_unsplit_model(family: str, cuts: list[int]) -> None:
    """With dropout, where the family has it: masks follow from the layer."""
    assert_parity(made(family), cuts, microbatch(samples=4), number=2)


def test_a_router_loss_reaches_the_routers_of_every_stage() -> None:
    """Peers dropped it under a pipeline, or computed it per stage: torchtitan PR #3000."""
    with_loss, without = (
        assert_parity(
            HuggingFaceModel.from_config(
                MixtralConfig(**SIZES, **EXPERTS, output_router_logits=on, router_aux_loss_coef=0.7),
                dtype=torch.float64,
            ),
            [0, 2, 4, 6],
            microbatch(),
        )
        for on in (True, False)
    )
    for stage, plain in zip(with_loss.stages[:2], without.stages[:2], strict=True):
        gates = [name for name in stage.weights if name.endswith("mlp.gate.weight")]
        assert gates
        assert not any(torch.equal(stage.weights[name].grad, plain.weights[name].grad) for name in gates)


def test_the_weight_of_a_router_loss_may_be_a_whole_number() -> None:
    config = MixtralConfig(**SIZES, **EXPERTS, output_router_logits=True, router_aux_loss_coef=0.7)
    module = MixtralForCausalLM(config)
    module.router_aux_loss_coef = 2
    output = module(input_ids=microbatch()["input_ids"])
    with collecting() as added:
        task_of(module).result(module, output)
    assert torch.equal(added[0], 2 * output.aux_loss)


def test_a_router_loss_of_unknown_weight_is_refused_when_the_model_is_seen() -> None:
    class Nameless(MixtralForCausalLM):  # type: ignore[misc]
        def __init__(self, config: MixtralConfig) -> None:
            super().__init__(config)
            del self.router_aux_loss_coef

    Nameless.__name__ = "MixtralForCausalLM"
    with pytest.raises(ModelError, match=r"router loss \(output_router_logits=True\) of unknown weight"):
        HuggingFaceModel(Nameless(MixtralConfig(**SIZES, **EXPERTS, output_router_logits=True)))


def shapes(boundary: Boundary) -> list[tuple[int, ...]]:
    return [spec.shape for spec in boundary.tensors]


def test_boundaries_are_foretold_for_every_length() -> None:
    """glm_moe_dsa hands on which tokens it attends to, of which there are at most ``index_topk``."""
    for family in ("glm_moe_dsa", "gemma3n_text", "router-loss"):
        model = made(family)
        for samples, length in ((1, 3), (2, 9), (3, 30)):
            batch = microbatch(samples=samples, length=length)
            value = None
            for layer in range(5):
                value = model.build_stage(layer, layer + 1, seed=0, device=torch.device("cpu")).module(value, batch)
                specs = model.boundary(layer + 1, batch).tensors
                assert [(s.shape, s.dtype, s.gradient) for s in specs] == [
                    (tuple(t.shape), t.dtype, t.requires_grad) for t in value
                ]


def test_what_crosses() -> None:
    batch = microbatch(samples=2, length=9)
    assert shapes(made("gpt2").boundary(1, batch)) == [(2, 9, 32)]
    never = HuggingFaceModel.from_config(GPT2Config(**GPT2, embd_pdrop=0.0))
    assert shapes(never.boundary(1, batch)) == [(2, 9, 32)]  # though dropout gives back what it was given
    assert shapes(made("opt").boundary(1, batch)) == [(2, 9, 32), (2, 9, 32)]
    indices = made("glm_moe_dsa").boundary(3, batch).tensors[1]
    assert (indices.shape, indices.dtype, indices.gradient) == ((2, 9, 4), torch.int32, False)
    routed = made("router-loss")
    assert shapes(routed.boundary(3, batch)) == [(18, 4), (2, 9, 32), (18, 4)]


def test_no_gradient_is_asked_for_what_has_none() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(CONFIGS["granite"], dtype=torch.float64)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.2" in name)
    split = HuggingFaceModel(model)
    wanted = [split.boundary(layer, microbatch()).tensors[0].gradient for layer in range(1, 6)]
    assert wanted == [False, False, False, True, True]
    assert_parity(split, [0, 3, 4, 6], microbatch())


def test_recomputation_inside_a_stage_changes_nothing() -> None:
    for family in ("gemma3n_text", "gpt2"):
        model = made(family)
        assert_parity(model, [0, 2, 4, 6], microbatch(), recompute=model.layer_names[1:5])


def packed() -> Microbatch:
    batch = microbatch()
    batch["position_ids"] = torch.cat([torch.arange(4), torch.arange(6)]).expand(2, 10).contiguous()
    return batch


def test_positions_are_refused_where_the_model_would_not_read_them() -> None:
    stage = made("bloom").build_stage(0, 6, seed=0, device=torch.device("cpu"))
    with pytest.raises(ModelError, match="BloomForCausalLM does not read 'position_ids'; leave it out"):
        stage.module(None, packed())
    assert_parity(made("opt"), [0, 3, 6], packed())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"attention_masks": (2, 5)},
            "OPTForCausalLM does not read 'attention_masks'; did you mean 'attention_mask'",
        ),
        ({"inputs_embeds": (2, 5)}, "'inputs_embeds' of a microbatch is not passed on to OPTForCausalLM"),
        ({"attention_mask": (2, 4)}, r"'attention_mask' has one number for each token of 'input_ids' .*\[2, 4\]"),
    ],
)
def test_what_would_be_left_unread_is_refused(given: dict[str, tuple[int, ...]], wanted: str) -> None:
    model = OPTForCausalLM(CONFIGS["opt"])
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.long), **{key: torch.ones(size) for key, size in given.items()}}
    with pytest.raises(ModelError, match=wanted):
        task_of(model).inputs(model, batch)
    assert "weights" not in task_of(model).inputs(model, {"input_ids": batch["input_ids"], "weights": torch.ones(2)})
