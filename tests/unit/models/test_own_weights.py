"""Which modules have their backward split: those whose weights are parameters of their own. The others stay whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, weight_norm

from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits
from tests.unit.models.taught import assert_same, taught

pytestmark = pytest.mark.usefixtures("rules_of_one_test")


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2.0


class Weighted(nn.Linear):
    """Without a bias of its own."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.in_features = self.out_features = 6
        self.weight = nn.Parameter(torch.randn(6, 6))


class Property(Weighted):
    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        return self.weight[:, 0]


class Attribute(Weighted):
    bias = torch.ones(6)  # type: ignore[assignment]


def buffered(module: nn.Module) -> None:
    del module.bias
    module.register_buffer("bias", torch.ones(6))


def plain(module: nn.Module) -> None:
    del module.bias
    module.bias = torch.ones(6)


def shadowed(module: nn.Module) -> None:
    vars(module)["bias"] = torch.ones(6)


def doubled(name: str) -> Callable[[nn.Module], object]:
    return lambda module: parametrize.register_parametrization(module, name, Double())


def doubled_both(module: nn.Module) -> None:
    doubled("weight")(module)
    doubled("bias")(module)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "a buffer": buffered,
    "a plain tensor": plain,
    "a tensor before the parameter": shadowed,
    "a parametrized bias": doubled("bias"),
    "a parametrized weight": doubled("weight"),
    "both parametrized": doubled_both,
}
LINEAR_CHANGES: dict[str, Callable[[nn.Module], object]] = {
    **CHANGES,
    "spectral norm": parametrizations.spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "the old weight norm": weight_norm,
}
WHOLE: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], object]]] = {
    **{f"linear, {name}": (lambda: nn.Linear(6, 6), change) for name, change in LINEAR_CHANGES.items()},
    **{f"layer norm, {name}": (lambda: nn.LayerNorm(6), change) for name, change in CHANGES.items()},
    "linear, a property": (Property, lambda _: None),
    "linear, an attribute of the class": (Attribute, lambda _: None),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("late", [False, True])
def test_a_module_whose_weight_is_no_parameter_of_its_own_stays_whole(name: str, late: bool) -> None:
    """The bias was taken for absent. ``late``: after the pipeline was built, before a step."""
    make, change = WHOLE[name]
    torch.manual_seed(3)
    module = make()
    start = copy.deepcopy(module)
    deferral = Deferral()
    if late:
        model = nn.Sequential(module)
        apply_weight_splits(model, deferral)
        change(module)
    else:
        change(module)
        model = nn.Sequential(module)
        _, whole = apply_weight_splits(model, deferral)
        assert whole == {type(module).__name__: 1}
    change(start)
    for target, source in zip(model.buffers(), start.buffers(), strict=True):
        target.copy_(source)  # spectral norm draws its own
    assert_same(taught(model, deferral), taught(nn.Sequential(start), None))


def test_a_weight_that_is_set_to_none_is_absent_and_the_rest_is_split() -> None:
    module: Any = nn.Linear(6, 6)
    module.bias = None
    plainly: Any = nn.Linear(6, 6)
    del plainly.bias
    plainly.bias = None
    deferral = Deferral()
    model = nn.Sequential(module, plainly)
    reference = copy.deepcopy(model)
    _, whole = apply_weight_splits(model, deferral)
    assert whole == {}
    assert_same(taught(model, deferral), taught(reference, None))
    with deferral.during():
        assert model(torch.ones(1, 6)).grad_fn.name() == "_OperationBackward"
