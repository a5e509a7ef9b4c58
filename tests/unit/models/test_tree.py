"""What crosses a boundary is a tree: skips and encoders travel, at every cut, with their gradients summed."""

from __future__ import annotations

import copy
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.load import layered
from fullbore.models.sequential import sequential_model
from fullbore.models.tree import take_apart
from tests.support.chains import CHAINS, WIDTH, batch, made
from tests.support.staged import Staged, sliced


@pytest.mark.parametrize("name", CHAINS)
def test_every_cut_of_every_chain_equals_the_modules_own_forward(name: str) -> None:
    """pytorch #127964: stages can only talk to their neighbours. The encoder's gradient is the sum over both uses."""
    module, given = made(name), batch()
    alone = copy.deepcopy(module)
    loss = ((_forward(alone, given["inputs"]) - given["targets"]) ** 2).mean()
    loss.backward()
    layers = len(layered(copy.deepcopy(module)).layer_names)
    for number in range(layers):
        for inner in combinations(range(1, layers), number):
            staged = Staged(layered(copy.deepcopy(module)), [0, *inner, layers])
            assert staged.step([sliced(given, 2 if name != "everything" else 1)]) == pytest.approx(
                float(loss.detach()), rel=1e-12
            )
            found = staged.store.gradients()
            assert len(found) == len(list(alone.parameters()))
            for key, weight in alone.named_parameters():
                assert weight.grad is not None
                torch.testing.assert_close(found[key], weight.grad, rtol=1e-10, atol=1e-14)


def _forward(module: nn.Module, value: Tensor) -> Tensor:
    output: Tensor = module(value.clone())
    return output


def test_what_needs_no_gradient_gets_none_sent() -> None:
    model = layered(made("everything"))
    boundary = model.boundary(2, batch())
    assert [(spec.dtype, spec.gradient) for spec in boundary.tensors] == [
        (torch.float64, True),
        (torch.float64, True),
        (torch.int64, False),
        (torch.bool, False),
        (torch.float64, False),
    ]
    assert len(boundary.gradients) == 2


def test_a_tree_is_put_together_as_it_was() -> None:
    tensors = torch.ones(1), torch.zeros(2, dtype=torch.int64)
    value = {"a": [tensors[0], None, 3], "b": (True, "x", {"c": tensors[1]}), "d": 0.5}
    parcel, tree = take_apart(value, giver="a layer")
    assert parcel == tensors
    assert tree == take_apart(value, giver="another")[1]
    again = tree.rebuild(parcel)
    assert again["a"][0] is tensors[0]
    assert again["b"][2]["c"] is tensors[1]
    assert (again["a"][1:], again["b"][:2], again["d"]) == ([None, 3], (True, "x"), 0.5)


def test_what_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="layer 'a' gives a set; turn it into these, or join this layer and the next"):
        take_apart((torch.ones(1), {1}), giver="layer 'a'")
    with pytest.raises(ModelError, match=r"at least one tensor, but layer 'a' gives \(1, None\)"):
        take_apart((1, None), giver="layer 'a'")


class CountsSteps(nn.Module):
    """A number that follows from no shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, value: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        return self.linear(value), self.calls


class Scales(nn.Module):
    def forward(self, value: tuple[Tensor, int]) -> Tensor:
        return value[0] * value[1]


def test_a_plain_number_that_follows_from_no_shape_is_refused() -> None:
    """The next stage has it from a pass of its own, and would silently use another one."""
    staged = Staged(sequential_model(nn.Sequential(CountsSteps(), Scales()).double()), [0, 1, 2])
    with pytest.raises(ModelError, match="give numbers that depend on values as tensors"):
        staged.step([sliced(batch(), 4)])


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_nothing_grows_from_step_to_step(cut: int) -> None:
    """pytorch #185331: reused receive buffers kept the hooks of earlier steps. Tensors and hooks are counted."""
    staged = Staged(layered(made("in-place ReLU")), [0, cut, 4])
    seen = []
    for step in range(1, 6):
        staged.step([sliced(batch(), 4)], step=step)
        staged.store.clear()
        seen.append((_num_tensors(), _num_hooks(staged)))
    assert len(set(seen[1:])) == 1, seen


def _num_tensors() -> int:
    import gc

    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def _num_hooks(staged: Staged) -> int:
    weights = sum(
        len(w._backward_hooks or ()) + len(w._post_accumulate_grad_hooks or ()) for w in staged.weights.values()
    )
    modules = [part for stage in staged.stages for part in stage.module.modules()]
    return weights + sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules)
