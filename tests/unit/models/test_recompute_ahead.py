"""Recomputation before the backward, with everything a step may have beside: the same bits as inside of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MixtralConfig

import fullbore
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.load import layered
from fullbore.models.sequential import sequential_model
from tests.support.staged import SQUARED_ERROR, Staged, sliced
from tests.unit.models.families import FAMILIES, SIZES, llama, microbatch

BLOCKS = tuple(f"layers.{index}" for index in range(4))
SPLIT = pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])


def both(
    make: Callable[[], Any],
    cuts: list[int],
    rounds: Any,
    *,
    recompute: tuple[str, ...],
    scale: float = 1.0,
    **more: Any,
) -> Staged:
    """Two steps inside the backward and the same ahead of it: equal losses, gradients and buffers. Gives the latter."""
    made: list[Staged] = []
    losses: list[float] = []
    for ahead in (False, True):
        torch.manual_seed(1)
        model = make()
        objective = model.objective or SQUARED_ERROR
        more |= {"objective": objective, "scaled": scale != 1.0}
        one = Staged(model, cuts, recompute=recompute, ahead=ahead, **more)
        losses += [one.step(rounds, step=number, loss_scale=scale) for number in (1, 2)]
        made.append(one)
    assert losses[:2] == losses[2:]
    inside, ahead_ = made
    expected, found = inside.store.gradients(), ahead_.store.gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name
        assert torch.isfinite(gradient).all()
    buffers = inside.buffers
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in ahead_.buffers.items())
    assert set(ahead_.again) == {"R"}, "the backward finds everything"
    assert ahead_.again["R"] == inside.again["backward"]
    assert ahead_.peak_held_bytes == inside.peak_held_bytes
    assert all(engine.num_live == 0 for engine in ahead_.engines)
    return ahead_


def uneven() -> list[list[dict[str, Tensor]]]:
    """Two rounds, microbatches of several shapes."""
    return [[microbatch(length=10), microbatch(samples=1, length=5)], [microbatch(samples=3, length=8, padded=True)]]


@SPLIT
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_tied_weights_with_a_loss_scale(dtype: torch.dtype, split: bool) -> None:
    def make() -> HuggingFaceModel:
        return HuggingFaceModel(AutoModelForCausalLM.from_config(llama(tie_word_embeddings=True)).to(dtype))

    scale = 2.0**10 if dtype == torch.float16 else 1.0
    found = both(make, [0, 3, 6], uneven(), recompute=BLOCKS, scale=scale, split=split)
    assert found.again["R"] == 2 * 4 * 3, "every layer for every microbatch of both steps"


@SPLIT
def test_some_layers_only_and_both_ends_in_one_stage(split: bool) -> None:
    make = partial(HuggingFaceModel.from_config, FAMILIES["qwen2-tied"])
    found = both(make, [0, 6], uneven(), recompute=("layers.1", "layers.2"), split=split)
    assert found.again["R"] == 2 * 2 * 3


@SPLIT
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
def test_adapters_beside_frozen_weights(split: bool) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)

    def make() -> Any:
        return layered(peft.get_peft_model(AutoModelForCausalLM.from_config(llama()), config))

    both(make, [0, 3, 6], uneven(), recompute=BLOCKS, split=split)


@SPLIT
def test_a_frozen_stage_and_a_frozen_layer(split: bool) -> None:
    def make() -> HuggingFaceModel:
        module = AutoModelForCausalLM.from_config(llama())
        for part in (module.model.embed_tokens, module.model.layers[0], module.model.layers[2].mlp):
            part.requires_grad_(False)
        return HuggingFaceModel(module)

    both(make, [0, 2, 4, 6], uneven(), recompute=BLOCKS[1:], split=split)


@SPLIT
def test_dropout_by_key_and_a_loss_in_chunks(split: bool) -> None:
    make = partial(HuggingFaceModel.from_config, llama(attention_dropout=0.3), loss_chunk=3)
    both(make, [0, 3, 6], uneven(), recompute=BLOCKS, split=split)


@SPLIT
def test_a_router_and_its_loss_count_once(split: bool) -> None:
    config = MixtralConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.7
    )
    found = both(partial(HuggingFaceModel.from_config, config), [0, 3, 6], uneven(), recompute=BLOCKS, split=split)
    assert any(engine.auxiliary_loss is not None for engine in found.engines)


@SPLIT
def test_auxiliary_losses_and_running_statistics_count_once(split: bool) -> None:
    class Penalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.norm = nn.BatchNorm1d(8)

        def forward(self, value: Tensor) -> Tensor:
            hidden = torch.tanh(self.norm(self.linear(value)))
            return hidden + 0.0 * fullbore.auxiliary_loss(0.1 * hidden.square().mean()).detach()

    def make() -> Any:
        return sequential_model(nn.Sequential(nn.Linear(8, 8), Penalized(), nn.Linear(8, 8)).double())

    batch = {name: torch.randn(8, 8).double() for name in ("inputs", "targets")}
    found = both(make, [0, 1, 2, 3], [sliced(batch, 4)], recompute=("1", "2"), split=split)
    assert found.buffers["1.norm.num_batches_tracked"] == 8, "two steps of four microbatches"
    assert found.engines[1].auxiliary_loss is not None


def test_a_layer_runs_forward_exactly_twice() -> None:
    model = HuggingFaceModel.from_config(llama())
    staged = Staged(model, [0, 3, 6], objective=model.objective, recompute=BLOCKS, ahead=True)
    ran: dict[str, int] = {}
    for stage in staged.stages:
        for name, part in stage.module.named_modules():
            if isinstance(part, nn.Linear):
                part.register_forward_hook(lambda *_, name=name: ran.update({name: ran.get(name, 0) + 1}))
    staged.step(uneven())
    head = [times for name, times in ran.items() if "lm_head" in name]
    blocks = [times for name, times in ran.items() if "lm_head" not in name]
    assert head == [3], "one for each microbatch"
    assert sorted(blocks) == 4 * [3] + 4 * 6 * [6], "the second time only as far as something is needed"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.slow
def test_compiled_layers() -> None:
    def make() -> Any:
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
        return sequential_model(nn.Sequential(*layers).double())

    batch = {name: torch.randn(8, 8).double() for name in ("inputs", "targets")}
    both(make, [0, 1, 2], [sliced(batch, 2)], recompute=("0", "1"), compiled=True)
