"""Small models for batches of every form, and batches of tokens drawn from a seed: the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Microbatch, Objective

VOCABULARY = 97
IGNORED = -100

OUTPUT_SUM = Objective(loss_sum=lambda output, batch: output.sum(), count=lambda batch: len(batch["inputs"]))


def tiny_llama(**more: Any) -> Any:
    """On the meta device: every rank and the reference draw the same values from the seed."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaConfig(**{"vocab_size": VOCABULARY, "tie_word_embeddings": False, **sizes, **heads, **more})


def llama(dtype: torch.dtype = torch.float64, **more: Any) -> HuggingFaceModel:
    return HuggingFaceModel.from_config(tiny_llama(**more), dtype=dtype)


def tokens(*shape: int, seed: int, ignored: Callable[[Tensor], Tensor] | None = None) -> Microbatch:
    """Drawn input and labels; ``ignored`` says which labels do not count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, shape, generator=generator)
    labels = torch.randint(0, VOCABULARY, shape, generator=generator)
    if ignored is not None:
        labels = torch.where(ignored(labels), IGNORED, labels)
    return {"input_ids": ids, "labels": labels}


def ones(*, layers: int = 2) -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(layers)))
    for layer in model:
        nn.init.ones_(layer.weight)
    return model
