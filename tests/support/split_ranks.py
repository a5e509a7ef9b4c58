"""Pipelines with split and with whole backwards on the same ranks, for one comparison of bits. See `on_ranks`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from fullbore.ir.action import Compute, Kind
from fullbore.ir.schedule import Schedule
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Objective
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker
from tests.support.ranks import SQUARED_ERROR, group
from tests.support.split_schedules import mixed, one_forward_one_input, v_shaped

WIDTH, VOCABULARY = 32, 61


@dataclass(frozen=True)
class Compared:
    """One rank's view of the same two steps under both kinds of schedule."""

    losses: tuple[tuple[float, ...], tuple[float, ...]]
    different: tuple[str, ...]
    """Gradients that have other bits than with whole backwards."""

    error: float
    """The largest of their relative errors."""

    num_gradients: int
    finite: bool
    norms: tuple[float, float]
    peak_held_bytes: int
    said: tuple[str, ...]


def config(**more: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**{**sizes, **more})


def untied() -> HuggingFaceModel:
    return HuggingFaceModel.from_config(config(num_hidden_layers=6))


def tied() -> HuggingFaceModel:
    return HuggingFaceModel.from_config(config(num_hidden_layers=6, tie_word_embeddings=True))


def with_weights() -> HuggingFaceModel:
    torch.manual_seed(3)
    return HuggingFaceModel(AutoModelForCausalLM.from_config(config(num_hidden_layers=6, tie_word_embeddings=True)))


def dropped() -> HuggingFaceModel:
    return HuggingFaceModel.from_config(config(num_hidden_layers=6, attention_dropout=0.3))


def chunked() -> HuggingFaceModel:
    return HuggingFaceModel.from_config(config(num_hidden_layers=6), loss_chunk=5)


def frozen() -> HuggingFaceModel:
    """The embedding and the first block, which is all that one stage of four has."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config(num_hidden_layers=6))
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    model.lm_head.requires_grad_(False)
    return HuggingFaceModel(model)


def adapted() -> Any:
    import peft

    torch.manual_seed(3)
    options = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return peft.get_peft_model(AutoModelForCausalLM.from_config(config(num_hidden_layers=6)), options)


def narrow() -> HuggingFaceModel:
    torch.manual_seed(3)
    return HuggingFaceModel(AutoModelForCausalLM.from_config(config(num_hidden_layers=6)).bfloat16())


def half() -> HuggingFaceModel:
    torch.manual_seed(3)
    return HuggingFaceModel(AutoModelForCausalLM.from_config(config(num_hidden_layers=6)).half())


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def unknown() -> nn.Sequential:
    """On the last rank a class without an entry."""
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)), Scale())


MODELS: Mapping[str, Callable[[], Any]] = {
    made.__name__: made
    for made in (untied, tied, with_weights, dropped, chunked, frozen, adapted, narrow, half, unknown)
}


def compare_all(worker: Worker, cases: Sequence[tuple[str, str, int, bool]]) -> list[Compared]:
    """(model, kind of schedule, microbatches, recompute) -> what both give."""
    mesh = group(worker)
    found = [_compare(mesh, *case) for case in cases]
    mesh.close()
    return found


def schedule(kind: str, num_ranks: int, num_microbatches: int) -> Schedule:
    match kind:
        case "1f1i":
            return one_forward_one_input(num_ranks, num_microbatches)
        case "late":
            return one_forward_one_input(num_ranks, num_microbatches, lag=num_microbatches)
        case "mixed":
            return mixed(num_ranks, num_microbatches)
        case _:
            return v_shaped(num_microbatches)


def _compare(mesh: Mesh, model: str, kind: str, microbatches: int, recompute: bool) -> Compared:
    split = schedule(kind, mesh.num_ranks, microbatches)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left = _two_steps(mesh, model, split, microbatches, recompute)
    said = tuple(str(one.message) for one in caught if "splits backwards" in str(one.message))
    whole = "1f1b" if kind != "v" else _whole(split)
    right = _two_steps(mesh, model, whole, microbatches, recompute)
    different = tuple(n for n, gradient in right[1].items() if not torch.equal(gradient, left[1][n]))
    assert left[1].keys() == right[1].keys()
    errors = [float((left[1][name] - right[1][name]).abs().max() / right[1][name].abs().max()) for name in different]
    finite = all(bool(torch.isfinite(gradient).all()) for gradient in left[1].values())
    norms = (left[2], right[2])
    return Compared(
        (left[0], right[0]), different, max(errors, default=0.0), len(left[1]), finite, norms, left[3], said
    )


def _two_steps(
    mesh: Mesh, model: str, schedule: str | Schedule, microbatches: int, recompute: bool
) -> tuple[tuple[float, ...], dict[str, Tensor], float, int]:
    made = MODELS[model]()
    pipeline = Pipeline(
        made,
        num_microbatches=microbatches,
        schedule=schedule,
        objective=_objective(model),
        recompute=_blocks(model) if recompute else (),
        seed=5,
        device=CpuDevice(),
        mesh=mesh,
        timeout_s=30.0,
    )
    losses = tuple(pipeline.step(batch(model, microbatches, seed)) for seed in (1, 2))
    norm = pipeline.clip_grad_norm(None)
    gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
    held = pipeline.peak_held_bytes
    pipeline.zero_grad()
    pipeline.release()
    return losses, gradients, norm, held


def _whole(split: Schedule) -> Schedule:
    """B where I was, and no W."""
    orders = tuple(
        tuple(
            Compute(a.stage, Kind.BACKWARD, a.microbatch) if a.kind is Kind.BACKWARD_INPUT else a
            for a in order
            if a.kind is not Kind.BACKWARD_WEIGHT
        )
        for order in split.orders
    )
    return Schedule("whole", split.placement, split.num_microbatches, orders)


def _objective(model: str) -> Objective | None:
    return SQUARED_ERROR if model == "unknown" else None


def _blocks(model: str) -> list[str]:
    return ["0", "2"] if model == "unknown" else [f"layers.{index}" for index in range(6)]


def batch(model: str, microbatches: int, seed: int) -> list[dict[str, Tensor]]:
    """Microbatches of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    if model == "unknown":
        shape = (2, WIDTH)
        return [
            {name: torch.randn(shape, generator=generator) for name in ("inputs", "targets")}
            for _ in range(microbatches)
        ]
    made = []
    for index in range(microbatches):
        ids = torch.randint(3, VOCABULARY, (1 + index % 2, 6 + index), generator=generator)
        made.append({"input_ids": ids, "labels": ids.clone()})
    return made
