"""Compiled layers compute what they compute without: at every cut, with changing sizes, dropout and recomputation."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import fullbore
from fullbore.errors import ModelError
from fullbore.models.compiled import apply_compile
from fullbore.models.profile import profile
from fullbore.models.sequential import sequential_model
from tests.support.staged import CPU, SQUARED_ERROR, Staged


class Everything(nn.Module):
    """Batch statistics, an auxiliary loss and dropout in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.3)

    def forward(self, value: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.linear(value)))
        fullbore.auxiliary_loss(0.01 * hidden.square().mean())
        output: Tensor = self.dropout(hidden)
        return output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_pipeline_gives_the_numbers_of_one_that_is_not() -> None:
    """Slices of 4, 4 and 2 rows, so that sizes change; layer 1 is recomputed."""
    torch.manual_seed(3)
    module = nn.Sequential(*(Everything() for _ in range(3))).double()
    given = {name: torch.randn(10, 8).double() for name in ("inputs", "targets")}
    rows = [{name: tensor[part] for name, tensor in given.items()} for part in (slice(4), slice(4, 8), slice(8, 10))]
    seen = []
    for compiled in (False, True):
        staged = Staged(sequential_model(copy.deepcopy(module)), [0, 2, 3], recompute=("1",), compiled=compiled)
        losses = [staged.step([rows], step=step) for step in (1, 2)]
        seen.append((losses, staged.store.gradients(), staged.buffers))
    (losses, gradients, buffers), (compiled_losses, compiled_gradients, compiled_buffers) = seen
    assert compiled_losses == pytest.approx(losses, rel=1e-12)
    for ours, theirs in ((compiled_gradients, gradients), (compiled_buffers, buffers)):
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-9, atol=1e-12)
    costs = profile(sequential_model(module), rows[0], device=CPU, repeats=1, objective=SQUARED_ERROR, compile=True)
    assert len(costs) == 3


@pytest.mark.parametrize("compiler", ["no-such-compiler", "ccache g++"])
def test_without_a_compiler_it_is_refused_with_what_to_do(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.13 runs all of CXX as one program: with a wrapper before it, inductor finds no compiler, much later."""
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(
        ModelError, match=rf"there is no '{re.escape(compiler)}'; install g\+\+, set CXX to the name of"
    ):
        apply_compile({"0": nn.Linear(2, 2)}, device=CPU)


def test_undoing_gives_the_module_back_and_a_copy_of_a_compiled_one_is_plain() -> None:
    module = nn.Linear(2, 2)
    undo = apply_compile({"0": module}, device=CPU)
    plain = copy.deepcopy(module)
    with torch.no_grad():
        plain.weight.zero_()
        plain.bias.fill_(3.0)
    assert torch.equal(plain(torch.ones(1, 2)), torch.full((1, 2), 3.0)), "not the original's weights, and no compiler"
    undo()
    assert "forward" not in vars(module)
