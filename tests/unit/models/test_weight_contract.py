"""What a registered split has to name and to give: else it is refused, never silently wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_contract import checked_gradients
from fullbore.models.split_backward.weight_registry import apply_weight_splits, register_weight_split
from fullbore.models.split_backward.weight_split import WeightSplit
from tests.unit.models.scale import Scale, ScaleSplit, splitting
from tests.unit.models.taught import assert_same, taught

pytestmark = pytest.mark.usefixtures("rules_of_one_test")


@pytest.mark.parametrize("names", ["weight", (), None, ("weight", "weight"), (1,), ["weight"], ("a.b",)])
def test_names_of_weights_are_a_tuple_of_names(names: object) -> None:
    with pytest.raises(
        ModelError, match=r"^OddSplit\.parameters is a tuple of the names .* as in \('weight',\) \(given"
    ):
        register_weight_split(Scale, splitting(parameters=names))


def test_a_name_that_the_module_does_not_know_is_refused_before_anything_is_wrapped() -> None:
    register_weight_split(Scale, splitting(parameters=("wieght",)))
    model = nn.Sequential(nn.Linear(6, 6), Scale())
    with pytest.raises(
        ModelError,
        match=r"^OddSplit\.parameters names 'wieght', and this Scale has nothing of that name \(its weights: weight\)",
    ):
        apply_weight_splits(model, Deferral())
    assert all("forward" not in vars(part) for part in model)


RUN = r"^OddSplit\.run gives two things, the output and a tuple of the tensors that weight_gradients needs \(given "
MADE = (
    r"^OddSplit\.weight_gradients gives a tuple of one tensor for each weight that trains, of its shape: weight \[6\] "
)


def returning(run: Callable[[Tensor, Any], object]) -> type[WeightSplit]:
    return splitting(run=lambda self, x, weights, wanted: run(x, weights))


def making(make: Callable[[Tensor], object]) -> type[WeightSplit]:
    return splitting(weight_gradients=lambda self, gradient, kept, wanted: make(gradient))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (returning(lambda x, w: x * w[0]), RUN + r"a tensor \[4, 6\]\)"),
        (returning(lambda x, w: (x * w[0], None)), RUN + r"tuple of 2: a tensor \[4, 6\], None\)"),
        (returning(lambda x, w: (x * w[0], 3)), RUN + r"tuple of 2: a tensor \[4, 6\], int\)"),
        (returning(lambda x, w: (x * w[0], x)), RUN + r"tuple of 2: a tensor \[4, 6\], a tensor \[4, 6\]\)"),
        (returning(lambda x, w: (x * w[0], (x, None))), RUN + r".*tuple of 2: a tensor \[4, 6\], None\)"),
        (returning(lambda x, w: None), RUN + r"None\)"),
        (
            returning(lambda x, w: ((x * w[0]).detach(), (x,))),
            r"^OddSplit\.run gives an output without a gradient, although its input has one: nothing before it would",
        ),
        (making(lambda gradient: ()), MADE + r"\(given nothing\)"),
        (making(lambda gradient: None), MADE + r"\(given None\)"),
        (making(lambda gradient: (None,)), MADE + r"\(given tuple of 1: None\)"),
        (making(lambda gradient: gradient.sum(0)), MADE + r"\(given a tensor \[6\]\)"),
        (making(lambda gradient: (gradient.sum(0),) * 2), MADE + r"\(given tuple of 2: a tensor \[6\], a tensor \[6\]"),
        (making(lambda gradient: (gradient.sum().reshape(1),)), MADE + r"\(given tuple of 1: a tensor \[1\]\)"),
        (making(lambda gradient: (gradient,)), MADE + r"\(given tuple of 1: a tensor \[4, 6\]\)"),
    ],
)
def test_what_a_split_gives_has_to_fit(split: type[WeightSplit], message: str) -> None:
    """A broadcast gradient and a detached output were taken as they were."""
    register_weight_split(Scale, split)
    deferral = Deferral()
    model = nn.Sequential(nn.Linear(6, 6), Scale())
    apply_weight_splits(model, deferral)
    with pytest.raises(ModelError, match=message):
        taught(model, deferral)


def test_a_list_of_what_is_kept_or_made_will_do() -> None:
    both = splitting(
        run=lambda self, x, weights, wanted: [x * weights[0], [x]],
        weight_gradients=lambda self, gradient, kept, wanted: [(gradient * kept[0]).sum(0)],
    )
    register_weight_split(Scale, both)
    deferral = Deferral()
    model = nn.Sequential(nn.Linear(6, 6), Scale())
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(taught(model, deferral), taught(reference, None))


def test_gradients_in_one_memory_come_apart() -> None:
    """They are added to in place: a sum of one would show in the other."""
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))]
    made = torch.ones(3)
    first, second = checked_gradients(
        ScaleSplit, (made, made), of=(), names=("weight", "bias"), wanted=(True, True), weights=weights
    )
    first.add_(1)
    assert second.tolist() == [1.0, 1.0, 1.0]
    apart = (torch.ones(3), torch.ones(3))
    kept = checked_gradients(ScaleSplit, apart, of=(), names=("weight", "bias"), wanted=(True, True), weights=weights)
    assert [id(tensor) for tensor in kept] == [id(tensor) for tensor in apart]


class Shift(nn.Module):
    """A weight as large as the input of these tests: its gradient is that of the output, and one tensor will do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def test_a_gradient_handed_on_as_it_came_is_not_added_into_for_others() -> None:
    """Used twice, its sum went into what the layer before still owed."""
    plain = splitting(
        run=lambda self, x, weights, wanted: (x + weights[0], ()),
        weight_gradients=lambda self, gradient, kept, wanted: (gradient,),
    )
    register_weight_split(Shift, plain)
    shift, deferral = Shift(), Deferral()
    model = nn.Sequential(nn.Linear(6, 6), shift, shift)
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(taught(model, deferral), taught(reference, None))


class Gate(nn.Module):
    """Where the output is summed, the gradient of its weight is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Gated(nn.Module):
    """The gate's gradients are made first, and the linear layer has kept the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x)
        return output + self.gate(x) + self.gate(x)


def test_a_tensor_that_was_kept_and_is_given_as_a_gradient_is_not_added_into_for_others() -> None:
    """The gate's second use would double the input of which the linear layer's gradient is made."""
    handing_on = splitting(weight_gradients=lambda self, gradient, kept, wanted: (kept[0],))
    register_weight_split(Gate, handing_on)
    model, deferral = nn.Sequential(nn.Linear(6, 6), Gated()), Deferral()
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(
        taught(model, deferral, steps=1, loss_of=torch.sum), taught(reference, None, steps=1, loss_of=torch.sum)
    )
