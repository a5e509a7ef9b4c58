"""Models of which only a part trains: factories of a run file."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

VOCABULARY = 256


def frozen() -> Any:
    """All that one stage of four has (embedding and first block) and a weight in the middle stay as they are."""
    model = _llama(tie_word_embeddings=False)
    for part in (model.model.embed_tokens, model.model.layers[0], model.model.layers[3].mlp.up_proj):
        part.requires_grad_(False)
    return model


def adapted() -> Any:
    """Low-rank adapters in every block; the embedding, which the head shares, is frozen."""
    import peft

    options = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return peft.get_peft_model(_llama(tie_word_embeddings=True), options)


def _llama(*, tie_word_embeddings: bool) -> Any:
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=6, tie_word_embeddings=tie_word_embeddings, **sizes)
    return AutoModelForCausalLM.from_config(config).double()
