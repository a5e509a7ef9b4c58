from __future__ import annotations

import errno
import json
from collections.abc import Callable
from functools import partial

import pytest
import torch

from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits
from fullbore.runtime.processes import blame as blame_module
from fullbore.runtime.processes.blame import blame, whose

ABSURD = 1 << 48


def blamed(call: Callable[[], object]) -> str:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        call()
    return blame(caught.value)


def blamed_in_a_run(call: Callable[[], object]) -> str:
    """There what calls and catches is fullbore's, and no file of ours here."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        call()
    trace = caught.value.__traceback__
    assert trace is not None
    return blame(caught.value.with_traceback(trace.tb_next))


def test_the_line_of_the_model_is_named_and_not_the_one_inside_torch() -> None:
    def layer() -> None:
        torch.nn.Linear(2, 2)(torch.ones(3))

    said = blamed(layer)
    assert said.startswith("RuntimeError: ")
    assert said.endswith(f"test_blame.py:{layer.__code__.co_firstlineno + 1} in layer)")


def test_nor_the_one_inside_the_standard_library() -> None:
    def layer() -> None:
        json.loads("{")

    assert blamed(layer).endswith(f"test_blame.py:{layer.__code__.co_firstlineno + 1} in layer)")


def test_without_a_line_of_the_model_it_is_ours_or_else_the_innermost() -> None:
    innermost, ours = (json.__file__, 3, "loads"), (blame_module.__file__, 5, "blame")
    assert whose([innermost, ours, ("<string>", 1, "<module>")]) == f"{ours[0]}:5 in blame"
    assert whose([innermost, ("<string>", 1, "<module>")]) == f"{json.__file__}:3 in loads"


@pytest.mark.parametrize("split", [False, True])
def test_without_a_line_of_the_model_the_module_is_named_whoever_runs_it(split: bool) -> None:
    """Was a line of fullbore's where the backward is split."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    deferral = Deferral()
    if split:
        apply_weight_splits(model, deferral)
    deferral.splits = True
    assert blamed_in_a_run(partial(model, torch.ones(4, 3))).endswith(
        " (in Linear(in_features=2, out_features=3, bias=True))"
    )
    embedding = torch.nn.Sequential(torch.nn.Embedding(3, 2))
    if split:
        apply_weight_splits(embedding, deferral)
    assert blamed_in_a_run(partial(embedding, torch.tensor([3]))).endswith(" (in Embedding(3, 2))")


@pytest.mark.parametrize("split", [False, True])
def test_the_line_of_the_model_is_named_though_the_layer_it_calls_is_split(split: bool) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model = torch.nn.Sequential(Layer())
    deferral = Deferral()
    if split:
        apply_weight_splits(model, deferral)
    deferral.splits = True
    line = Layer.forward.__code__.co_firstlineno + 1
    assert blamed(partial(model, torch.ones(4, 3))).endswith(f"test_blame.py:{line} in forward)")


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.empty(ABSURD, dtype=torch.uint8),
        lambda: bytearray(ABSURD),
        lambda: (_ for _ in ()).throw(OSError(errno.ENOMEM, "Cannot allocate memory")),
    ],
)
def test_memory_that_ran_out_is_called_so_whoever_says_it(call: Callable[[], object]) -> None:
    said = blamed(call)
    assert said.startswith("out of memory: ")
    assert said.endswith("; use more stages, smaller microbatches or recomputation, or run fewer ranks on the machine")


def test_other_errors_are_not() -> None:
    assert not blamed(lambda: torch.ones(2) @ torch.ones(3)).startswith("out of memory")


def test_a_message_that_is_empty_or_long_makes_one_line() -> None:
    assert blamed(lambda: (_ for _ in ()).throw(KeyError)).startswith("KeyError (")
    assert "second" not in blamed(lambda: (_ for _ in ()).throw(ValueError("first\nsecond")))
