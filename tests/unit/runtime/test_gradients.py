"""Gradients accumulate in float32 or wider, whatever the parameters are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.runtime.gradients import GradientStore


def accumulate(dtype: torch.dtype, values: list[float]) -> torch.Tensor:
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    store = GradientStore({"w": weight})
    for value in values:
        (weight * torch.tensor([value], dtype=dtype)).sum().backward()
    return store.gradients()["w"]


def test_bf16_gradients_are_added_in_float32() -> None:
    """In bf16, 256 + 1 is 256: adding ones there stands still at 256."""
    gradient = accumulate(torch.bfloat16, [1.0] * 300)
    assert gradient.dtype == torch.float32
    assert gradient.item() == 300.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_parameters_keep_their_own_gradient(dtype: torch.dtype) -> None:
    gradient = accumulate(dtype, [1.0, 2.0])
    assert gradient.dtype == dtype
    assert gradient.item() == 3.0


def test_a_narrow_parameter_holds_no_second_copy() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    store = GradientStore({"w": weight})
    weight.sum().backward()
    assert weight.grad is None
    store.clear()
    assert store.gradients() == {}


def test_closing_takes_the_hooks_off() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    GradientStore({"w": weight}).close()
    weight.sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_without_a_gradient_counts_as_zero_where_asked_for(dtype: torch.dtype) -> None:
    store = GradientStore({"w": nn.Parameter(torch.ones(2, dtype=dtype))})
    assert store.gradients() == {}
    assert torch.equal(store.of("w"), torch.zeros(2))
    assert "w" in store.gradients()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sparse_gradient_adds_up_as_a_dense_one_and_is_dense_where_copies_are_summed(dtype: torch.dtype) -> None:
    found = []
    for sparse in (False, True):
        torch.manual_seed(1)
        embedding = nn.Embedding(5, 2, sparse=sparse).to(dtype)
        store = GradientStore({"w": embedding.weight})
        for rows in ([0, 3, 0], [3, 1, 1]):
            (embedding(torch.tensor(rows)).float() * torch.arange(6.0).view(3, 2)).sum().backward()
        assert store.gradients()["w"].is_sparse is sparse
        found.append(store.of("w"))
    dense, made = found
    assert made.layout == torch.strided
    assert torch.equal(made, dense)
    assert store.gradients()["w"] is made
