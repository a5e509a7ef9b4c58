"""The eager engine: what it keeps, when it lets go, and the gradients it leaves."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from fullbore.ids import MicrobatchIndex
from fullbore.models.layered import Boundary, Microbatch, Objective, Parcel, TensorSpec
from fullbore.runtime.eager import EagerEngine, Edge, EvaluationEngine

FIRST = MicrobatchIndex(0)
SUM = Objective(loss_sum=lambda output, _: output[0].sum(), count=lambda microbatch: microbatch["inputs"].numel())


def of_shape(*shape: int, gradient: bool = True) -> Edge:
    return lambda _: Boundary((TensorSpec(shape, torch.float32, gradient=gradient),))


class Doubling(nn.Module):
    """y = x * w with w = 2: autograd keeps x and w, and not the output, which ``made`` watches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, carried: Parcel | None, microbatch: Microbatch) -> Parcel:
        output = (microbatch["inputs"] if carried is None else carried[0]) * self.weight
        self.made = weakref.ref(output)
        return (output,)


def test_the_output_is_let_go_of_once_whoever_sends_it_does() -> None:
    module = Doubling()
    engine = EagerEngine(module, entrance=None, exit=of_shape(4), objective=None)
    engine.begin(4)
    output = engine.forward(FIRST, {"inputs": torch.ones(4)}, None)
    assert output is not None
    sent = weakref.ref(output[0])
    del output
    assert module.made() is None, "the graph's own output is gone at once"
    assert sent() is None, "and so is what was handed on, once it is sent"
    assert engine.num_live == 1
    assert engine.backward(FIRST, (torch.full((4,), 3.0),)) is None
    assert engine.num_live == 0


def test_a_middle_stage_hands_the_gradient_of_its_input_upstream() -> None:
    module = Doubling()
    engine = EagerEngine(module, entrance=of_shape(4), exit=of_shape(4), objective=None)
    engine.begin(4)
    carried = torch.arange(4.0)
    output = engine.forward(FIRST, {}, (carried,))
    assert output is not None
    assert not output[0].requires_grad
    (gradient,) = engine.backward(FIRST, (torch.full((4,), 3.0),)) or ()
    assert torch.equal(gradient, torch.full((4,), 6.0))
    assert module.weight.grad is not None
    assert module.weight.grad.item() == 3.0 * carried.sum().item()
    assert not carried.requires_grad, "what arrived is not changed"


def test_the_last_stage_divides_by_the_global_count_and_keeps_no_output() -> None:
    engine = EagerEngine(Doubling(), entrance=of_shape(4), exit=None, objective=SUM)
    engine.begin(10)
    assert engine.forward(FIRST, {"inputs": torch.ones(4)}, (torch.ones(4),)) is None
    assert engine.loss_sum.item() == 8.0
    (gradient,) = engine.backward(FIRST, None) or ()
    assert torch.equal(gradient, torch.full((4,), 0.2))


def test_a_stage_where_nothing_needs_a_gradient_runs() -> None:
    module = Doubling().requires_grad_(False)
    engine = EagerEngine(module, entrance=None, exit=of_shape(4, gradient=False), objective=None)
    engine.begin(4)
    assert engine.forward(FIRST, {"inputs": torch.ones(4)}, None) is not None
    assert engine.backward(FIRST, ()) is None
    assert module.weight.grad is None


def test_an_unfinished_microbatch_is_our_bug() -> None:
    engine = EagerEngine(Doubling(), entrance=None, exit=of_shape(4), objective=None)
    engine.begin(4)
    engine.forward(FIRST, {"inputs": torch.ones(4)}, None)
    with pytest.raises(AssertionError, match="no backward"):
        engine.begin(4)


def test_evaluation_turns_dropout_off_keeps_nothing_and_restores_every_mode() -> None:
    class Dropping(Doubling):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.BatchNorm1d(1).eval()

        def forward(self, carried: Parcel | None, microbatch: Microbatch) -> Parcel:
            (output,) = super().forward(carried, microbatch)
            return (nn.functional.dropout(output, 0.9, training=self.training),)

    module = Dropping()
    engine = EvaluationEngine(module, objective=SUM)
    engine.begin()
    assert engine.forward(FIRST, {"inputs": torch.ones(4)}, (torch.ones(4),)) is None
    engine.end()
    assert engine.loss_sum is not None
    assert engine.loss_sum.item() == 8.0
    assert (module.training, module.frozen.training) == (True, False)
    assert module.weight.grad is None
    engine.begin()
    assert engine.loss_sum is None
