"""Encoder-decoders and classifiers: what later stages need travels, and the objective is the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BartConfig,
    GPT2Config,
    T5Config,
)

from fullbore.config.run import ModelConfig
from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Microbatch, TiedWeight
from fullbore.models.load import load_model
from tests.unit.models.chained import CPU
from tests.unit.models.families import FAMILIES, VOCABULARY, llama, microbatch
from tests.unit.models.hf_parity import assert_parity

T5 = {
    **{"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 48},
    **{"decoder_start_token_id": 0, "pad_token_id": 0},
}
BART = {
    **{
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_position_embeddings": 64,
    },
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    **{"bos_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2},
}


def pairs(*, padded: bool = True) -> Microbatch:
    """Sources of 9 tokens, targets of 6."""
    generator = torch.Generator().manual_seed(7)
    found = {
        "input_ids": torch.randint(3, VOCABULARY, (4, 9), generator=generator),
        "labels": torch.randint(3, VOCABULARY, (4, 6), generator=generator),
    }
    found["labels"][0, 4:] = -100
    if padded:
        found["attention_mask"] = torch.ones(4, 9, dtype=torch.long)
        found["attention_mask"][1, -3:] = 0
    return found


def t5(**more: Any) -> HuggingFaceModel:
    return HuggingFaceModel.from_config(T5Config(**{**T5, **more}), dtype=torch.float64)


def test_the_layers_of_an_encoder_decoder() -> None:
    model = t5()
    assert model.layer_names == (
        *("embed", "encoder.block.0", "encoder.block.1", "encoder.final_layer_norm"),
        *("decoder.block.0", "decoder.block.1", "head"),
    )
    assert model.tied == (TiedWeight("shared.weight", (0, 3, 6)),)
    crossing = model.boundary(5, pairs()).tensors
    assert [spec.shape for spec in crossing] == [(4, 9, 32), (4, 6, 32), (1, 4, 6, 6), (1, 4, 6, 9)]
    assert [spec.gradient for spec in crossing] == [True, True, True, False]


@pytest.mark.parametrize("cuts", [[0, 4, 7], [0, 1, 2, 3, 4, 5, 6, 7], [0, 5, 6, 7]])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_encoders_gradient_is_the_sum_over_the_decoder_layers_that_read_it(cuts: list[int], dropout: float) -> None:
    """pytorch #127964: stages could only talk to their neighbours."""
    assert_parity(t5(dropout_rate=dropout), cuts, pairs(), number=2)


def test_an_untied_encoder_decoder_with_absolute_positions() -> None:
    model = HuggingFaceModel.from_config(BartConfig(**BART, dropout=0.1), dtype=torch.float64)
    assert "final_logits_bias" in model.build_stage(3, 7, seed=0, device=CPU).buffers
    assert_parity(model, [0, 2, 5, 7], pairs(), number=2)


def test_decoder_inputs_are_given_or_made_of_the_labels_as_the_model_makes_them() -> None:
    model = t5(dropout_rate=0.0)
    stage = model.build_stage(0, 7, seed=0, device=CPU)
    batch = pairs()
    shifted = torch.cat([torch.zeros(4, 1, dtype=torch.long), batch["labels"][:, :-1].clamp(min=0)], dim=1)
    assert torch.equal(stage.module(None, batch), stage.module(None, {**batch, "decoder_input_ids": shifted}))
    other = HuggingFaceModel.from_config(T5Config(**{**T5, "decoder_start_token_id": None})).build_stage(
        0, 7, seed=0, device=CPU
    )
    with pytest.raises(ModelError, match=r"cannot make 'decoder_input_ids' of the labels .*set decoder_start_token_id"):
        other.module(None, batch)


def test_the_embedding_is_drawn_as_t5_draws_it() -> None:
    """With a deviation of 1, and not of 0.02."""
    weights = HuggingFaceModel.from_config(T5Config(**{**T5, "vocab_size": 5000})).build_stage(0, 1, seed=0, device=CPU)
    assert weights.weights["shared.weight"].std().item() == pytest.approx(1.0, rel=0.02)


def classifier(maker: Any, config: Any) -> HuggingFaceModel:
    with torch.device("meta"):
        return HuggingFaceModel(maker.from_config(config, dtype=torch.float64).train())


@pytest.mark.parametrize("family", ["llama", "qwen2-tied", "gptj"])
def test_a_sequence_classifier_pools_the_last_token_that_is_no_padding(family: str) -> None:
    config = type(FAMILIES[family]).from_dict({**FAMILIES[family].to_dict(), "num_labels": 3, "pad_token_id": 0})
    model = classifier(AutoModelForSequenceClassification, config)
    assert model.layer_names[-1] == "head"
    batch = microbatch(samples=4, padded=True)
    batch["input_ids"][1, -3:] = 0
    batch["labels"] = torch.tensor([0, 2, -100, 1])
    assert model.objective.count(batch) == 3
    staged = assert_parity(model, [0, 2, 5, 6], batch, number=2)
    assert any(name.startswith("score.") for name in staged.stages[-1].weights)


def test_a_token_classifier() -> None:
    config = llama(num_labels=5, hidden_size=32)
    config.num_labels = 5
    model = classifier(AutoModelForTokenClassification, config)
    batch = microbatch(samples=4)
    batch["labels"] = batch["labels"].clamp(max=4)
    assert_parity(model, [0, 3, 6], batch, number=2)


def test_the_class_of_a_sample_is_what_is_counted() -> None:
    from fullbore.models.classification import classification_objective

    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]], requires_grad=True)
    loss = classification_objective().loss_sum(logits, {"labels": torch.tensor([0, -100])})
    assert loss.item() == pytest.approx(0.126928, abs=1e-6)


def refused(config: Any, maker: Any = AutoModelForSequenceClassification) -> Any:
    with torch.device("meta"):
        return maker.from_config(config)


def test_other_heads_and_objectives_are_refused() -> None:
    with pytest.raises(ModelError, match=r"picks one of several classes .*num_labels=1, problem_type=None"):
        HuggingFaceModel(refused(llama(num_labels=1)))
    with pytest.raises(ModelError, match="problem_type=multi_label_classification"):
        HuggingFaceModel(refused(llama(num_labels=3, problem_type="multi_label_classification")))
    with pytest.raises(ModelError, match="LlamaForQuestionAnswering is none of these for llama"):
        HuggingFaceModel(refused(llama(), AutoModelForQuestionAnswering))


def test_labels_reach_a_decoder_on_every_stage() -> None:
    model = t5()
    first = model.build_stage(0, 2, seed=0, device=CPU)
    batch: dict[str, Tensor] = dict(pairs())
    del batch["labels"]
    with pytest.raises(ModelError, match="a decoder without 'decoder_input_ids' reads 'labels'"):
        first.module(None, batch)


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2"])
def test_pretrained_weights_of_other_families(family: str, tmp_path: Path) -> None:
    """Tied weights are stored once, and each stage that uses one has its values (sglang PR #15890)."""
    config = {
        "t5": T5Config(**T5),
        "bart": BartConfig(**BART),
        "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64),
    }[family]
    torch.manual_seed(2)
    maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    saved = maker.from_config(config)
    saved.save_pretrained(tmp_path)
    model = load_model(ModelConfig(hf=str(tmp_path), from_pretrained=True))
    last = len(model.layer_names)
    found = {}
    for first, end in ((0, 2), (2, last)):
        stage = model.build_stage(first, end, seed=0, device=CPU)
        for name, weight in stage.weights.items():
            assert torch.equal(weight, saved.get_parameter(name)), name
        found |= stage.weights
    assert found.keys() == dict(saved.named_parameters()).keys()
