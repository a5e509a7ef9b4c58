"""Where no gradient comes back, a layer before has none: as in one process, and not one of zeros."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fullbore
from fullbore.errors import ModelError
from fullbore.models.reach import edges_of, reached
from fullbore.models.sequential import sequential_model
from tests.support.staged import Staged, sliced


class Detaching(nn.Module):
    """Looks at what it is given, and passes no gradient on while it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.detaches = True

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.linear(value.detach() if self.detaches else value)
        return output


class Forked(nn.Module):
    """Gives two things made from weights of their own; nobody reads the second."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.unread = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(value), self.unread(value)


class Along(nn.Module):
    """Hands the second thing on as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.linear(pair[0]), pair[1]


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.relu_(pair[0])


class Added(nn.Linear):
    """Adds a loss of its own to the objective."""

    def forward(self, value: Tensor) -> Tensor:
        output = super().forward(value)
        fullbore.auxiliary_loss(output.square().mean())
        return output


class Watching(nn.Linear):
    """Adds a loss on what it is given, and passes no other gradient on."""

    def forward(self, value: Tensor) -> Tensor:
        fullbore.auxiliary_loss(value.square().mean())
        return super().forward(value.detach())


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


CHAINS: dict[str, Callable[[], list[nn.Module]]] = {
    "detached": lambda: [linear(), linear(), Detaching(), linear()],
    "in the last layer": lambda: [linear(), linear(), linear(), Detaching()],
    "a loss before": lambda: [linear(), Detaching(), Added(8, 8), Detaching()],
    "a loss in the last layer": lambda: [linear(), linear(), linear(), Watching(8, 8)],
    "unread": lambda: [linear(), Forked(), Along(), First()],
    "a view overwritten": lambda: [nn.Linear(8, 8), nn.Unflatten(1, (2, 4)), nn.ReLU(inplace=True), nn.Flatten()],
}
ALL_TRAIN = {"a loss in the last layer", "a view overwritten"}
"""Chains of which every weight has a gradient."""


def chain(name: str) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(*CHAINS[name]()).double()


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(4, 8, generator=generator).double() for name in ("inputs", "targets")}


@pytest.mark.parametrize(
    "how", [{}, {"split": True}, {"recompute": ["0"]}, {"recompute": ["0"], "ahead": True}], ids=str
)
@pytest.mark.parametrize("cuts", [[0, 4], [0, 2, 4], [0, 1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_the_same_weights_have_a_gradient_for_every_cut(name: str, cuts: Sequence[int], how: dict[str, Any]) -> None:
    module = chain(name)
    alone = Staged(sequential_model(copy.deepcopy(module)), [0, 4])
    cut = Staged(sequential_model(module), cuts, **how)
    losses = [staged.step([sliced(batch(), 2)]) for staged in (alone, cut)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    expected = alone.store.gradients()
    assert expected
    assert (len(expected) == len(alone.weights)) is (name in ALL_TRAIN)
    assert cut.store.gradients().keys() == expected.keys()
    for weight, gradient in cut.store.gradients().items():
        torch.testing.assert_close(gradient, expected[weight], rtol=1e-10, atol=1e-13)


def test_nothing_comes_back_over_a_boundary_that_is_cut_off() -> None:
    model = sequential_model(chain("detached"))
    specs = [model.boundary(layer, batch()).tensors[0] for layer in (1, 2, 3)]
    assert [(spec.gradient, spec.cut_off) for spec in specs] == [(False, True), (False, True), (True, False)]
    pair = sequential_model(chain("unread")).boundary(2, batch()).tensors
    assert [(spec.gradient, spec.cut_off) for spec in pair] == [(True, False), (False, True)]
    frozen = sequential_model(chain("detached")[:2].requires_grad_(False)).boundary(1, batch()).tensors[0]
    assert (frozen.gradient, frozen.cut_off) == (False, False)


def test_what_crosses_is_what_trained_when_stages_were_built() -> None:
    """A rank may freeze layers that it does not hold, and the others do not know."""
    module = chain("a view overwritten")
    model = sequential_model(module)
    model.build_stage(2, 4, seed=0, device=torch.device("cpu"))
    module[0].requires_grad_(False)
    assert all(model.boundary(layer, batch()).tensors[0].gradient for layer in (1, 2, 3))


def test_stages_built_anew_cross_by_what_trains_then() -> None:
    """One `LayeredModel` for several pipelines, of which the second trains less."""
    module = nn.Sequential(nn.Linear(8, 8), linear(), linear()).double()
    model = sequential_model(module)
    crossing = []
    for trains in (True, False, True):
        module[0].requires_grad_(trains)
        staged = Staged(model, [0, 1, 2, 3])
        staged.step([sliced(batch(), 2)])
        crossing.append([model.boundary(layer, batch()).tensors[0].gradient for layer in (1, 2)])
        assert ("0.weight" in staged.store.gradients()) is trains
        module.zero_grad()
    assert crossing == [[True, True], [False, True], [True, True]]


def test_a_layer_that_changes_its_mind_is_refused() -> None:
    """The gradient that it lets through would be lost, and nobody would notice."""
    module = chain("detached")
    staged = Staged(sequential_model(module), [0, 2, 4])
    staged.step([sliced(batch(), 1)])
    module[2].detaches = False
    with pytest.raises(ModelError, match=r"one of \[4, 8\] comes back .* detach always or never, or build a new"):
        staged.step([sliced(batch(), 1)])


def test_a_backward_comes_to_the_places_that_its_roots_are_made_from() -> None:
    one, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    halves = (one * other).split(1)
    (first, second), ends = edges_of(halves), reached(edges_of([halves[0] * 2]))
    assert first in ends
    assert second not in ends, "two outputs of one operation"
    assert set(edges_of([one, other])) <= ends
    assert edges_of([torch.ones(1)]) == (None,)
    assert reached([None]) == frozenset()
