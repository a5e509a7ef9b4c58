"""Auxiliary losses reach their gradients on any stage, once, with a size that neither p nor m changes."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import fullbore
from fullbore.config.run import OptimizerConfig
from fullbore.errors import ModelError
from fullbore.models.auxiliary import num_samples
from fullbore.models.layered import Microbatch
from fullbore.models.sequential import sequential_model
from fullbore.verify.reference import run_reference
from tests.support.staged import CPU, SQUARED_ERROR, Staged, sliced

WEIGHT = 0.01


class Penalised(nn.Module):
    """Adds WEIGHT * mean(h^2) of its activations to the objective."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(value))
        return hidden + 0.0 * fullbore.auxiliary_loss(WEIGHT * hidden.square().mean()).detach()


def mlp4() -> nn.Sequential:
    """Layer 1, of stage 0, has the auxiliary loss."""
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(layers[0], Penalised(), *layers[2:]).double()


def batch() -> Microbatch:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(8, 8, generator=generator).double() for name in ("inputs", "targets")}


def by_hand(module: nn.Sequential, given: Microbatch) -> tuple[float, dict[str, Tensor]]:
    """The whole batch at once, the penalty written out."""
    hidden = module[1](module[0](given["inputs"]))
    output = module[3](module[2](hidden))
    loss = ((output - given["targets"]) ** 2).mean() + WEIGHT * hidden.square().mean()
    loss.backward()
    return float(loss.detach()), {name: w.grad for name, w in module.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("recompute", [(), ("0", "1", "2", "3")], ids=["kept", "recomputed"])
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("cuts", [[0, 4], [0, 2, 4], [0, 1, 2, 4]])
def test_the_gradient_contains_the_term_and_its_size_depends_on_neither_p_nor_m(
    cuts: Sequence[int], number: int, recompute: Sequence[str]
) -> None:
    """Automodel PR #1412, megablocks #64: dropped on middle stages, or growing with the number of microbatches."""
    module = mlp4()
    loss, gradients = by_hand(copy.deepcopy(module), batch())
    staged = Staged(sequential_model(copy.deepcopy(module)), cuts, recompute=recompute)
    assert staged.step([sliced(batch(), number)]) == pytest.approx(loss, rel=1e-12)
    found = staged.store.gradients()
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("microbatch", "rows"),
    [
        ({"mask": torch.ones(5, 5), "input_ids": torch.ones(3, 5)}, 3),
        ({"scale": torch.tensor(1.0), "inputs": torch.ones(2, 4), "labels": torch.ones(7)}, 2),
        ({"attention_mask": torch.ones(9, 9), "labels": torch.ones(4)}, 4),
        ({"b": torch.ones(6), "a": torch.ones(2, 3)}, 2),
        ({"a": torch.tensor(1.0), "b": torch.ones(6)}, 6),
    ],
)
def test_the_samples_are_the_rows_of_one_key_whatever_comes_first(microbatch: Microbatch, rows: int) -> None:
    assert num_samples(microbatch) == rows
    assert num_samples(dict(reversed(microbatch.items()))) == rows


def test_a_microbatch_of_single_numbers_has_no_samples() -> None:
    with pytest.raises(ModelError, match=r"samples along dimension 0 \(no tensor of it has one: a\)"):
        num_samples({"a": torch.tensor(1.0)})


def test_it_counts_with_the_share_of_the_samples() -> None:
    """Slices of 6 and 2 rows: 6/8 and 2/8, not one half each."""
    module, given = mlp4(), batch()
    rows = [{name: tensor[part] for name, tensor in given.items()} for part in (slice(0, 6), slice(6, 8))]
    loss, gradients = by_hand(copy.deepcopy(module), given)
    staged = Staged(sequential_model(copy.deepcopy(module)), [0, 2, 4])
    assert staged.step([rows]) == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(
        staged.store.gradients()["1.linear.weight"], gradients["1.linear.weight"], rtol=1e-10, atol=1e-14
    )


def test_the_reference_of_verify_has_it_too() -> None:
    module = mlp4()
    loss, gradients = by_hand(copy.deepcopy(module), batch())
    seen = run_reference(
        sequential_model(module),
        [sliced(batch(), 4)],
        objective=SQUARED_ERROR,
        initial={name: weight.detach() for name, weight in module.named_parameters()},
        optimizer=OptimizerConfig(),
        device=CPU,
    )
    assert seen.losses[0] == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(seen.gradients["1.linear.weight"], gradients["1.linear.weight"], rtol=1e-10, atol=1e-14)


def test_a_stage_whose_only_gradient_is_its_auxiliary_loss_trains() -> None:
    """What it hands on needs no gradient for anybody before it, and nothing after it trains."""
    module = nn.Sequential(Penalised(), nn.Linear(8, 8)).double()
    module[1].requires_grad_(False)
    loss, gradients = by_hand_short(copy.deepcopy(module), batch())
    staged = Staged(sequential_model(copy.deepcopy(module)), [0, 1, 2])
    assert staged.step([sliced(batch(), 2)]) == pytest.approx(loss, rel=1e-12)
    assert staged.store.gradients().keys() == gradients.keys()


def by_hand_short(module: nn.Sequential, given: Microbatch) -> tuple[float, dict[str, Tensor]]:
    hidden = module[0](given["inputs"])
    loss = ((module[1](hidden) - given["targets"]) ** 2).mean() + WEIGHT * hidden.square().mean()
    loss.backward()
    return float(loss.detach()), {name: w.grad for name, w in module.named_parameters() if w.grad is not None}


def test_evaluation_and_the_model_by_itself_add_nothing() -> None:
    module = mlp4()
    staged = Staged(sequential_model(module), [0, 2, 4])
    with torch.no_grad():
        plain = float(((module(batch()["inputs"]) - batch()["targets"]) ** 2).mean())
    assert staged.evaluate(sliced(batch(), 4)) == pytest.approx(plain, rel=1e-12)
    value = torch.tensor([1.0, 2.0])
    assert fullbore.auxiliary_loss(value) is value


def test_a_vector_is_refused() -> None:
    class Vector(Penalised):
        def forward(self, value: Tensor) -> Tensor:
            return fullbore.auxiliary_loss(self.linear(value))

    staged = Staged(sequential_model(nn.Sequential(Vector(), nn.Linear(8, 8)).double()), [0, 1, 2])
    with pytest.raises(ModelError, match=r"auxiliary_loss takes one number as a tensor .given shape \[4, 8\].; use"):
        staged.step([sliced(batch(), 2)])
