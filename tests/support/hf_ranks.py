"""Hugging Face models on launched ranks: one step of a real pipeline, and of one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullbore.config.run import OptimizerConfig
from fullbore.models.layered import LayeredModel, Microbatch
from fullbore.models.load import layered
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker, launch
from fullbore.verify.reference import copies, run_reference
from tests.support.ranks import PRELOAD, group
from tests.support.staged import sliced

VOCABULARY = 97


@dataclass(frozen=True)
class Compared:
    """One rank's share of a step against the whole of it."""

    loss: float
    gradients: dict[str, Tensor]
    expected_loss: float
    expected: dict[str, Tensor]


def compared(*names: str, schedule: str, num_ranks: int) -> list[list[Compared]]:
    """By rank, in the order of ``names``: keys of `MODELS`."""
    return launch("tests.support.hf_ranks:compare", names, schedule, num_ranks=num_ranks, preload=PRELOAD)


def compare(worker: Worker, names: Sequence[str], schedule: str) -> list[Compared]:
    """A step of four microbatches, each model with a new pipeline on the same group."""
    mesh = group(worker)
    found = []
    for name in names:
        make, batch = MODELS[name]
        model, given = make(), batch()
        pipeline = Pipeline(
            model, num_microbatches=4, schedule=schedule, device=CpuDevice(), mesh=mesh, timeout_s=60.0, seed=3
        )
        loss = pipeline.step(given)
        gradients = {key: gradient.clone() for key, gradient in pipeline.gradients().items()}
        pipeline.release()
        found.append(Compared(loss, gradients, *_in_one_process(model, sliced(given, 4))))
    mesh.close()
    return found


def _in_one_process(model: LayeredModel, microbatches: list[Microbatch]) -> tuple[float, dict[str, Tensor]]:
    cpu = torch.device("cpu")
    whole = model.build_stage(0, len(model.layer_names), seed=3, device=cpu)
    assert model.objective is not None
    seen = run_reference(
        model,
        [microbatches],
        objective=model.objective,
        initial={**copies(whole.weights), **copies(whole.buffers)},
        optimizer=OptimizerConfig(name="sgd"),
        device=cpu,
        seed=3,
    )
    return seen.losses[0], dict(seen.gradients)


def text(*, samples: int = 8, length: int = 6, target_length: int | None = None) -> Microbatch:
    """Random tokens; the targets may have another length."""
    generator = torch.Generator().manual_seed(2)
    lengths = {"input_ids": length, "labels": length if target_length is None else target_length}
    return {key: torch.randint(3, VOCABULARY, (samples, n), generator=generator) for key, n in lengths.items()}


def t5() -> LayeredModel:
    """With dropout: its masks are the same on every stage."""
    from transformers import T5Config

    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 3, "d_ff": 48}
    return layered(T5Config(**sizes, dropout_rate=0.1, decoder_start_token_id=0), dtype=torch.float64)


def gpt2() -> LayeredModel:
    """In chunks of three tokens, and with dropout."""
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=2, n_positions=64)
    return layered(config, dtype=torch.float64, loss_chunk=3)


def routed() -> LayeredModel:
    """Mixtral with its router loss."""
    from transformers import MixtralConfig

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = MixtralConfig(
        **sizes,
        vocab_size=VOCABULARY,
        num_hidden_layers=3,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    return layered(config, dtype=torch.float64)


def adapted() -> LayeredModel:
    """LoRA on the last block: no gradient crosses before it."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=VOCABULARY, num_hidden_layers=3)).train()
    with warnings.catch_warnings(action="ignore"):
        wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], layers_to_transform=[2])).double()
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return layered(wrapped)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Microbatch]]] = {
    "t5": (t5, lambda: text(length=7, target_length=5)),
    "gpt2": (gpt2, text),
    "routed": (routed, text),
    "adapted": (adapted, text),
}
