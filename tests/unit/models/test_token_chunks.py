"""The loss in chunks of tokens: the same numbers, and never all logits at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CohereConfig, Gemma2Config, GPT2Config, LlamaConfig, MixtralConfig, OPTConfig, T5Config

from fullbore.config.run import ModelConfig
from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Microbatch
from fullbore.models.load import layered, load_model
from fullbore.models.token_chunks import TokenChunks
from tests.unit.models.chained import CPU
from tests.unit.models.families import SIZES
from tests.unit.models.hf_parity import assert_parity
from tests.unit.models.test_load import make_sequential

VOCABULARY = 997
LARGE = {**SIZES, "vocab_size": VOCABULARY, "num_hidden_layers": 2}
T5 = {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 1, "d_ff": 48, "decoder_start_token_id": 0}
CONFIGS: dict[str, Any] = {
    "llama-tied": LlamaConfig(**LARGE, tie_word_embeddings=True),
    "gemma2-soft-cap": Gemma2Config(**LARGE, head_dim=16, final_logit_softcapping=5.0),
    "cohere-scale": CohereConfig(**LARGE, logit_scale=0.25),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64),
    "opt": OPTConfig(vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_attention_heads=2, num_hidden_layers=2),
    "t5": T5Config(vocab_size=VOCABULARY, dropout_rate=0.0, **T5),
}


def batch() -> Microbatch:
    generator = torch.Generator().manual_seed(1)
    found = {key: torch.randint(3, VOCABULARY, (2, 9), generator=generator) for key in ("input_ids", "labels")}
    found["labels"][0, :7] = -100
    return found


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("family", CONFIGS)
def test_loss_and_gradients_are_those_of_all_logits_at_once(family: str, size: int) -> None:
    """The first chunk of five has no token that counts."""
    model = HuggingFaceModel.from_config(CONFIGS[family], dtype=torch.float64, loss_chunk=size)
    last = len(model.layer_names)
    assert_parity(model, [0, last - 1, last], batch())


def largest_kept(model: HuggingFaceModel) -> int:
    """Elements of the largest tensor that the last stage keeps for its backward, other than weights."""
    stage = model.build_stage(0, len(model.layer_names), seed=0, device=CPU)
    weights = {weight.untyped_storage().data_ptr() for weight in stage.weights.values()}
    largest = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal largest
        if tensor.untyped_storage().data_ptr() not in weights:
            largest = max(largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.objective.loss_sum(stage.module(None, batch()), batch())
    return largest


def test_no_logits_are_kept() -> None:
    config = CONFIGS["llama-tied"]
    assert largest_kept(HuggingFaceModel.from_config(config)) >= 18 * VOCABULARY
    assert largest_kept(HuggingFaceModel.from_config(config, loss_chunk=4)) < 2 * VOCABULARY


def test_an_evaluation_gives_the_same_logits_and_loss() -> None:
    whole, chunked = (HuggingFaceModel.from_config(CONFIGS["gemma2-soft-cap"], loss_chunk=size) for size in (None, 4))
    with torch.no_grad():
        expected, found = (m.build_stage(0, 4, seed=0, device=CPU).module(None, batch()) for m in (whole, chunked))
        assert isinstance(found, TokenChunks)
        torch.testing.assert_close(found.head(found.hidden.flatten(0, -2)), expected.flatten(0, -2))
        torch.testing.assert_close(
            chunked.objective.loss_sum(found, batch()), whole.objective.loss_sum(expected, batch())
        )


def test_a_stage_has_its_head_once() -> None:
    model = HuggingFaceModel.from_config(CONFIGS["cohere-scale"], loss_chunk=4)
    stage = model.build_stage(3, 4, seed=0, device=CPU)
    assert list(stage.weights) == ["model.norm.weight", "model.embed_tokens.weight"]
    assert {id(p) for p in stage.module.parameters()} == {id(p) for p in stage.weights.values()}
    assert not any(tensor.is_meta for tensor in (*stage.module.parameters(), *stage.module.buffers()))


def test_where_it_cannot_be_it_is_refused() -> None:
    routed = MixtralConfig(**LARGE, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    with pytest.raises(ModelError, match="adds a router's loss to its logits"):
        HuggingFaceModel.from_config(routed, loss_chunk=4)
    with pytest.raises(ModelError, match=r"loss_chunk is a number of tokens, 1 or more \(loss_chunk=0\)"):
        HuggingFaceModel.from_config(CONFIGS["gpt2"], loss_chunk=0)
    with pytest.raises(ModelError, match=r"loss_chunk is for Hugging Face models; torch\.nn"):
        layered(make_sequential(), loss_chunk=4)


def test_the_run_file_says_it() -> None:
    model = load_model(ModelConfig(config={"num_hidden_layers": 1}, loss_chunk=8))
    stage = model.build_stage(2, 3, seed=0, device=CPU)
    assert isinstance(
        stage.module((torch.zeros(1, 4, 256),), {"input_ids": torch.zeros(1, 4, dtype=torch.long)}), TokenChunks
    )
