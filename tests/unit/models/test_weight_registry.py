"""What may be registered as a split backward, for which forwards it then holds, and how it is taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits, register_weight_split, split_of
from fullbore.models.split_backward.weight_split import WeightSplit
from tests.unit.models.scale import Scale, ScaleSplit

pytestmark = pytest.mark.usefixtures("rules_of_one_test")


def test_what_was_registered_can_be_taken_back() -> None:
    register_weight_split(Scale, ScaleSplit)
    assert split_of(Scale()) is ScaleSplit
    register_weight_split(Scale, None)
    register_weight_split(Scale, None)
    assert split_of(Scale()) is None


def scaled_by(factor: float, *, default: float | None = None) -> type[nn.Module]:
    """Classes whose forwards have the same code and do not compute the same."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        if default is None:

            def forward(self, x: Tensor) -> Tensor:
                return x * self.weight * factor

        else:

            def forward(self, x: Tensor, by: float = default) -> Tensor:
                return x * self.weight * by

    return Scaled


@pytest.mark.parametrize(
    ("one", "other"),
    [(scaled_by(1.0), scaled_by(2.0)), (scaled_by(0.0, default=1.0), scaled_by(0.0, default=2.0))],
    ids=["closed over", "default"],
)
def test_a_forward_of_the_same_code_is_another_where_it_computes_something_else(
    one: type[nn.Module], other: type[nn.Module]
) -> None:
    register_weight_split(one, ScaleSplit)
    assert split_of(one()) is ScaleSplit
    assert split_of(other()) is None
    register_weight_split(other, None)
    assert split_of(one()) is ScaleSplit


class NoForward(nn.Module):
    pass


@pytest.mark.parametrize("kind", [nn.Module, NoForward])
def test_a_class_without_a_forward_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ModelError, match=r"a module class that has a forward \(given <class '.*Module'>\)|NoForward"):
        register_weight_split(kind, ScaleSplit)


def test_a_split_has_both_halves() -> None:
    class Half(WeightSplit):
        def run(self, x: Any, weights: Any, wanted: Any) -> Any: ...

    with pytest.raises(ModelError, match=r"^Half lacks weight_gradients, which"):
        register_weight_split(Scale, Half)


def test_a_split_that_cannot_be_made_leaves_every_module_as_it_was() -> None:
    class Fails(ScaleSplit):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            raise KeyError("scale")

    register_weight_split(Scale, Fails)
    model = nn.Sequential(nn.Linear(3, 3), Scale())
    with pytest.raises(
        ModelError, match=r"^Fails cannot be made for a module of class Scale \(KeyError: 'scale'\); its constructor"
    ):
        apply_weight_splits(model, Deferral())
    assert all("forward" not in vars(module) for module in model.modules())
