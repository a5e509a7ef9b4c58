"""Dropout masks belong to (seed, step, microbatch, layer): no cut, no order and no recomputation changes them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fullbore.config.run import OptimizerConfig
from fullbore.models.layered import Microbatch
from fullbore.models.randomness import RandomKeys, apply_keys
from fullbore.models.sequential import sequential_model
from fullbore.verify.reference import run_reference
from tests.support.staged import CPU, SQUARED_ERROR, Staged, sliced

NAMES = ("0", "1", "2", "3")


class FunctionalDropout(nn.Module):
    """As transformers writes attention dropout: a function call, which no module tells of."""

    def forward(self, value: Tensor) -> Tensor:
        return functional.dropout(value, 0.1, training=self.training)


def mlp4(dropout: type[nn.Module] | None = nn.Dropout) -> nn.Sequential:
    """Four Linear(8, 8) with tanh in float64, dropout 0.1 after each."""
    torch.manual_seed(11)
    make = {None: nn.Identity, nn.Dropout: lambda: nn.Dropout(0.1)}.get(dropout, dropout)
    assert make is not None
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), make()) for _ in range(4))).double()


def batch() -> Microbatch:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(8, 8, generator=generator).double() for name in ("inputs", "targets")}


def trained(
    cuts: Sequence[int], rounds: Sequence[Sequence[Microbatch]], *, recompute: Sequence[str] = (), module: nn.Module
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and gradients of two steps that add up."""
    staged = Staged(sequential_model(copy.deepcopy(module)), cuts, recompute=recompute)
    losses = [staged.step(rounds, step=step) for step in (1, 2)]
    return losses, staged.store.gradients()


@pytest.mark.parametrize("dropout", [nn.Dropout, FunctionalDropout, None])
@pytest.mark.parametrize("number", [2, 4])
def test_the_same_for_every_cut_round_and_recomputation_and_as_in_one_process(
    dropout: type[nn.Module] | None, number: int
) -> None:
    """pytorch #55036: with seeds fixed, results changed with the number of stages."""
    module = mlp4(dropout)
    cut = sliced(batch(), number)
    losses, gradients = trained([0, 4], [cut], module=module)
    for cuts, rounds, recompute in (
        ([0, 2, 4], [cut], ()),
        ([0, 1, 2, 3, 4], [cut], ()),
        ([0, 2, 4], [cut[:1], cut[1:]], ()),
        ([0, 4], [cut], NAMES),
        ([0, 2, 4], [cut], NAMES),
    ):
        again, other = trained(cuts, rounds, recompute=recompute, module=module)
        assert again == losses
        for name, gradient in gradients.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-12, atol=0)
    model = sequential_model(module)
    reference = run_reference(
        model,
        [cut],
        objective=SQUARED_ERROR,
        initial={name: weight.detach() for name, weight in module.named_parameters()},
        optimizer=OptimizerConfig(),
        device=CPU,
    )
    assert losses[0] == pytest.approx(reference.losses[0], rel=1e-12)
    assert (losses[0] == losses[1]) is (dropout is None), "another step has other masks"


def test_masks_differ_between_layers_microbatches_and_steps_and_change_with_the_seed() -> None:
    model = nn.ModuleDict({name: nn.Dropout(0.5) for name in ("a", "b")})
    drawn = {}
    for seed in (0, 1):
        keys = RandomKeys(seed, device=CPU)
        undo = apply_keys({name: (part,) for name, part in model.items()}, keys)
        for step in (1, 2):
            for microbatch in (0, 1):
                with keys.during(step=step, microbatch=microbatch):
                    for name, part in model.items():
                        drawn[seed, step, microbatch, name] = tuple(part(torch.ones(64)).tolist())
        undo()
    assert len(set(drawn.values())) == len(drawn) == 16


def test_the_users_own_random_state_is_left_alone_and_plays_no_part() -> None:
    cut = sliced(batch(), 2)
    module, seen = mlp4(), []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        seen.append(trained([0, 2, 4], [cut], recompute=NAMES, module=module)[0])
        assert torch.equal(torch.get_rng_state(), before)
    assert seen[0] == seen[1]


def test_a_module_that_is_two_layers_draws_the_same_wherever_they_are() -> None:
    """From meta each stage has a copy of its own, as on two ranks."""
    cut = sliced(batch(), 2)
    losses = []
    for cuts in ([0, 3], [0, 1, 3], [0, 1, 2, 3]):
        with torch.device("meta"):
            shared = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), nn.Dropout(0.5))
            model = sequential_model(nn.Sequential(shared, nn.Tanh(), shared))
        losses.append(Staged(model, cuts).step([cut]))
    assert losses == [losses[0]] * 3


def test_the_modules_are_given_back_as_they_were() -> None:
    module = mlp4()
    staged = Staged(sequential_model(module), [0, 2, 4], recompute=NAMES)
    assert "forward" in vars(module[0])
    for undo in reversed(staged.undo):
        undo()
    assert all("forward" not in vars(part) for part in module.modules())


def test_evaluation_draws_nothing() -> None:
    staged = Staged(sequential_model(mlp4()), [0, 2, 4])
    cut = sliced(batch(), 2)
    assert staged.evaluate(cut) == staged.evaluate(cut)
