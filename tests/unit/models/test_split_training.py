"""Split backwards with everything a step may have beside: the same bits as with whole ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import fullbore
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.load import layered
from fullbore.models.sequential import sequential_model
from tests.support.staged import SQUARED_ERROR, Staged, sliced
from tests.unit.models.families import FAMILIES, llama, microbatch


def both(
    make: Callable[[], Any], cuts: list[int], rounds: Any, *, scale: float = 1.0, **more: Any
) -> tuple[Staged, Staged]:
    """A step with whole backwards and the same with split ones: equal losses, equal gradients."""
    made: list[Staged] = []
    losses: list[float] = []
    for split in (False, True):
        torch.manual_seed(1)
        model = make()
        objective = model.objective or SQUARED_ERROR
        one = Staged(model, cuts, objective=objective, split=split, scaled=scale != 1.0, **more)
        losses.append(one.step(rounds, loss_scale=scale))
        made.append(one)
    assert losses[0] == losses[1]
    whole, split_ = made
    expected, found = whole.store.gradients(), split_.store.gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert found[name].dtype == gradient.dtype
        assert torch.equal(found[name], gradient), name
        assert torch.isfinite(gradient).all()
    return whole, split_


def uneven() -> list[list[dict[str, Tensor]]]:
    """Two rounds, microbatches of several shapes."""
    return [[microbatch(length=10), microbatch(samples=1, length=5)], [microbatch(samples=3, length=8, padded=True)]]


RECOMPUTE = pytest.mark.parametrize("recompute", [(), tuple(f"layers.{i}" for i in range(4))])


@RECOMPUTE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_add_up_in_float32(dtype: torch.dtype, recompute: tuple[str, ...]) -> None:
    """The hooks of the accumulators run at W, and float16's loss is scaled."""

    def make() -> HuggingFaceModel:
        return HuggingFaceModel(AutoModelForCausalLM.from_config(llama(tie_word_embeddings=True)).to(dtype))

    scale = 2.0**10 if dtype == torch.float16 else 1.0
    _, split = both(make, [0, 3, 6], uneven(), scale=scale, recompute=recompute)
    gradients = split.store.gradients()
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    assert all(weight.grad is None for weight in split.weights.values())


@RECOMPUTE
def test_an_unequal_number_of_uses_of_one_weight_on_one_stage(recompute: tuple[str, ...]) -> None:
    """Embedding and head in one stage share their weight: its two gradients are summed once."""
    both(partial(HuggingFaceModel.from_config, FAMILIES["qwen2-tied"]), [0, 6], uneven(), recompute=recompute)


@RECOMPUTE
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
def test_adapters_beside_frozen_weights(recompute: tuple[str, ...]) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)

    def make() -> Any:
        return layered(peft.get_peft_model(AutoModelForCausalLM.from_config(llama()), config))

    _, split = both(make, [0, 3, 6], uneven(), recompute=recompute)
    assert split.whole == [{}, {}], "every adapter is a linear layer"
    assert len(split.store.gradients()) == 4 * 2 * 2
    assert all("lora" in name for name in split.store.gradients())


@RECOMPUTE
@pytest.mark.parametrize("frozen", ["embed_tokens", "layers.0", "layers.1.mlp", "lm_head", "norm"])
def test_frozen_weights(frozen: str, recompute: tuple[str, ...]) -> None:

    def make() -> HuggingFaceModel:
        module = AutoModelForCausalLM.from_config(llama())
        for name, weight in module.named_parameters():
            weight.requires_grad_(frozen not in name)
        return HuggingFaceModel(module)

    _, split = both(make, [0, 2, 4, 6], uneven(), recompute=recompute)
    assert not any(frozen in name for name in split.store.gradients())


def test_a_stage_where_nothing_trains() -> None:
    def make() -> HuggingFaceModel:
        module = AutoModelForCausalLM.from_config(llama())
        module.model.embed_tokens.requires_grad_(False)
        module.model.layers[0].requires_grad_(False)
        return HuggingFaceModel(module)

    _, split = both(make, [0, 2, 6], uneven())
    assert split.peak_held_bytes[0] == 0
    assert split.peak_held_bytes[1] > 0


@RECOMPUTE
def test_dropout_by_key(recompute: tuple[str, ...]) -> None:
    both(partial(HuggingFaceModel.from_config, llama(attention_dropout=0.3)), [0, 3, 6], uneven(), recompute=recompute)


@RECOMPUTE
def test_a_loss_in_chunks_keeps_no_gradients_of_logits(recompute: tuple[str, ...]) -> None:
    """The head's weight gradient is made at I."""
    make = partial(HuggingFaceModel.from_config, llama(vocab_size=1000))
    _, split = both(partial(make, loss_chunk=3), [0, 5, 6], uneven(), recompute=recompute)
    _, whole = both(make, [0, 5, 6], uneven(), recompute=recompute)
    assert split.peak_held_bytes[1] == 0
    assert whole.peak_held_bytes[1] > 2 * 10 * 1000 * 4


def test_auxiliary_losses_of_a_stage_in_the_middle() -> None:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, value: Tensor) -> Tensor:
            hidden = torch.tanh(self.linear(value))
            return hidden + 0.0 * fullbore.auxiliary_loss(0.1 * hidden.square().mean()).detach()

    def make() -> Any:
        return sequential_model(nn.Sequential(nn.Linear(8, 8), Penalised(), nn.Linear(8, 8)).double())

    batch = {name: torch.randn(8, 8).double() for name in ("inputs", "targets")}
    for recompute in ((), ("1",)):
        both(make, [0, 1, 2, 3], [sliced(batch, 4)], recompute=recompute)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_layers_stay_whole() -> None:
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    model = sequential_model(nn.Sequential(*layers).double())
    batch = {name: torch.randn(8, 8).double() for name in ("inputs", "targets")}
    staged = Staged(model, [0, 1, 2], compiled=True, split=True)
    assert staged.whole == [{"Linear": 1}, {"Linear": 1}]
    staged.step([sliced(batch, 2)])
    assert all(weight.grad is not None for weight in staged.weights.values())


@pytest.mark.parametrize("split", [False, True])
def test_with_recomputation_a_layer_runs_forward_exactly_twice(split: bool) -> None:
    """torch.distributed.pipelining: up to 11 times in a Llama block (torchtitan #773)."""
    model = HuggingFaceModel.from_config(llama())
    staged = Staged(model, [0, 3, 6], objective=model.objective, split=split, recompute=model.layer_names[1:-1])
    ran: dict[str, int] = {}
    for stage in staged.stages:
        for name, part in stage.module.named_modules():
            if isinstance(part, nn.Linear):
                part.register_forward_hook(lambda *_, name=name: ran.update({name: ran.get(name, 0) + 1}))
    rounds = uneven()
    staged.step(rounds)
    head = [times for name, times in ran.items() if "lm_head" in name]
    blocks = [times for name, times in ran.items() if "lm_head" not in name]
    assert head == [3], "one for each microbatch"
    assert sorted(blocks) == 4 * [3] + 4 * 6 * [6], "the second time only as far as something is needed"


def test_a_later_stage_in_the_same_process_does_not_run_what_stands_before_it() -> None:
    """A model with weights is cut in place; wrappers of one stage must not get into the next one's stand-ins."""
    torch.manual_seed(1)
    model = HuggingFaceModel(AutoModelForCausalLM.from_config(llama(tie_word_embeddings=True)))
    staged = Staged(model, [0, 3, 6], objective=model.objective)
    ran: list[str] = []
    for name in ("embed_tokens", "layers.0.mlp.up_proj"):
        part = staged.stages[0].module.get_submodule(f"model.model.{name}")
        part.register_forward_hook(lambda *_, name=name: ran.append(name))
        inner = part.forward
        part.forward = lambda *args, inner=inner, name=name: (ran.append(f"called {name}"), inner(*args))[1]
    staged.step([[microbatch(length=10)]])
    assert sorted(ran) == ["called embed_tokens", "called layers.0.mlp.up_proj", "embed_tokens", "layers.0.mlp.up_proj"]


def test_a_gradient_that_is_not_finite_is_seen_after_w() -> None:
    model = HuggingFaceModel.from_config(llama())
    staged = Staged(model, [0, 3, 6], objective=model.objective, split=True)
    with torch.no_grad():
        staged.weights["model.layers.3.mlp.up_proj.weight"][0, 0] = float("inf")
    staged.step(uneven())
    assert not all(torch.isfinite(gradient).all() for gradient in staged.store.gradients().values())


def test_what_is_held_is_the_input_and_the_output_gradient_of_every_operation() -> None:
    """Three linear layers in a row, 4 rows of 8 doubles. Each keeps x and dy; tanh's output is the next one's x."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    model = sequential_model(nn.Sequential(*layers).double())
    batch = {name: torch.randn(12, 8).double() for name in ("inputs", "targets")}
    staged = Staged(model, [0, 2, 3], split=True)
    one = 4 * 8 * 8
    staged.step([sliced(batch, 3)])
    # Up to three microbatches wait (see Staged). The first stage's x of all three are slices of one storage.
    assert staged.peak_held_bytes == [3 * one + 3 * 3 * one, 3 * 2 * one]
    assert [engine.held_bytes for engine in staged.engines] == [0, 0]
    assert [engine.num_live for engine in staged.engines] == [0, 0]
