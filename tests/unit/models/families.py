"""Tiny configurations of several families, chosen for what makes splitting them hard."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
)

from fullbore.models.hugging_face.model import HuggingFaceModel

VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NEOX = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
GPTJ = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 64, "rotary_dim": 8}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def llama(**more: Any) -> Any:
    return LlamaConfig(**{**SIZES, "tie_word_embeddings": False, **more})


FAMILIES: dict[str, Any] = {
    "llama": llama(),
    "llama-yarn": llama(rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}),
    "qwen2-tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "gemma2": Gemma2Config(**SIZES, head_dim=16, sliding_window=4, layer_types=MIXED, final_logit_softcapping=5.0),
    "gemma3_text": Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=4, layer_types=MIXED),
    "mistral": MistralConfig(**SIZES, sliding_window=4),
    "phi3": Phi3Config(**SIZES),
    "phi": PhiConfig(**SIZES),
    "gpt_neox": GPTNeoXConfig(**NEOX),
    "gptj": GPTJConfig(**GPTJ, bos_token_id=1, eos_token_id=2),
    "olmo2": Olmo2Config(**SIZES),
    "cohere": CohereConfig(**SIZES, logit_scale=0.25),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1),
}


def microbatch(
    *, samples: int = 2, length: int = 10, padded: bool = False, positions: bool = False
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    shape = (samples, length)
    labels = torch.randint(0, VOCABULARY, shape, generator=generator)
    labels[0, :3] = -100
    found = {"input_ids": torch.randint(3, VOCABULARY, shape, generator=generator), "labels": labels}
    if padded:
        found["attention_mask"] = torch.ones(shape, dtype=torch.long)
        found["attention_mask"][1, -3:] = 0
    if positions:
        found["position_ids"] = torch.arange(5, 5 + length).expand(samples, length)
    return found


def plain(config: Any, model: HuggingFaceModel, *, seed: int = 0) -> Any:
    """transformers' own construction of the whole model on the CPU, with the weights fullbore gives it."""
    dtype = next(iter(model.build_stage(0, 1, seed=seed, device=torch.device("cpu")).weights.values())).dtype
    made = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype).train()
    stage = model.build_stage(0, len(model.layer_names), seed=seed, device=torch.device("cpu"))
    own = dict(made.named_parameters())
    assert own.keys() == stage.weights.keys()
    with torch.no_grad():
        for name, weight in stage.weights.items():
            own[name].copy_(weight)
    return made


def logits_of(model: Any, microbatch: dict[str, Tensor]) -> Tensor:
    given = {key: value for key, value in microbatch.items() if key != "labels"}
    logits: Tensor = model(**given, use_cache=False).logits
    return logits
