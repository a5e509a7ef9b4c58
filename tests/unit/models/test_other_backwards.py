"""A split backward and others: one that runs inside of the schedule's own belongs to it, any other is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fullbore.errors import ModelError
from fullbore.models.sequential import sequential_model
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits, register_weight_split
from tests.support.staged import Staged
from tests.unit.models.scale import Scale, ScaleSplit
from tests.unit.models.taught import assert_same, taught

pytestmark = pytest.mark.usefixtures("rules_of_one_test")


class Reentrant(nn.Module):
    """Its recomputation runs a backward inside of the schedule's."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.part, x, use_reentrant=True)
        return made


def test_a_backward_inside_of_the_schedules_own_is_part_of_it() -> None:
    deferral = Deferral()
    model = nn.Sequential(nn.Linear(6, 6), Reentrant())
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(taught(model, deferral), taught(reference, None))


class Penalized(nn.Module):
    """Its output depends on the gradient of a part's output for its input."""

    def __init__(self, part: nn.Module, *, create_graph: bool) -> None:
        super().__init__()
        self.part = part
        self.create_graph = create_graph

    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.part(x).square().sum(), x, create_graph=self.create_graph)
        return x + gradient


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", [nn.Linear, Scale])
def test_a_layer_that_differentiates_by_itself_is_refused_and_exact_once_the_class_is_whole(
    kind: type[nn.Module], create_graph: bool, recompute: bool
) -> None:
    """An operation (Linear), a note or, where something is recomputed, a tap (Scale)."""
    register_weight_split(Scale, ScaleSplit)
    batch = {"inputs": torch.randn(4, 6), "targets": torch.randn(4, 6)}

    def trained(*, split: bool) -> tuple[float, dict[str, Tensor]]:
        torch.manual_seed(4)
        part = nn.Linear(6, 6) if kind is nn.Linear else Scale()
        model = nn.Sequential(nn.Linear(6, 6), Penalized(part, create_graph=create_graph))
        staged = Staged(sequential_model(model), [0, 1, 2], split=split, recompute=("1",) if recompute else ())
        loss = staged.step([[batch]])
        return loss, staged.store.gradients()

    with pytest.raises(ModelError) as caught:
        trained(split=True)
    assert str(caught.value) == (
        f"the backward of this {kind.__name__} is split, and something differentiates it besides the schedule "
        "(torch.autograd.grad or backward inside of a layer or loss), which needs a whole one; call "
        f"fullbore.register_weight_split({kind.__name__}, None) before the pipeline is built, or use a schedule "
        "without W"
    )
    register_weight_split(kind, None)
    (loss, made), (expected_loss, expected) = trained(split=True), trained(split=False)
    assert loss == expected_loss
    assert_same(list(made.values()), list(expected.values()))
    if create_graph:
        assert expected["1.part.weight"].abs().max() > 0
