"""Receive buffers come back when nobody holds them, and never before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullbore.models.layered import TensorSpec
from fullbore.runtime.transport.receive_buffers import ReceiveBuffers

LARGE = TensorSpec((1 << 16,), torch.float32, gradient=True)
SMALL = TensorSpec((16,), torch.float32, gradient=True)


def saved_by_autograd(buffer: Tensor) -> object:
    leaf = buffer.detach().requires_grad_()
    return (leaf * torch.ones_like(leaf, requires_grad=True)).sum()


@pytest.mark.parametrize(
    "hold",
    [
        lambda buffer: buffer,
        lambda buffer: buffer.detach(),
        lambda buffer: buffer[:1],
        lambda buffer: buffer.numpy(),
        lambda buffer: buffer.untyped_storage(),
        saved_by_autograd,
    ],
    ids=["itself", "detached", "view", "numpy", "storage", "autograd"],
)
def test_a_buffer_that_somebody_holds_is_not_given_out_again(hold: Callable[[Tensor], object]) -> None:
    buffers = ReceiveBuffers(torch.device("cpu"))
    first = buffers.take(LARGE)
    address, held = first.data_ptr(), hold(first)
    del first
    assert buffers.take(LARGE).data_ptr() != address
    del held
    addresses = {taken.data_ptr() for taken in [buffers.take(LARGE), buffers.take(LARGE)]}
    assert address in addresses


def test_as_many_are_made_as_are_needed_at_once() -> None:
    buffers = ReceiveBuffers(torch.device("cpu"))
    seen = set()
    for _ in range(10):
        pair = [buffers.take(LARGE), buffers.take(LARGE)]
        seen |= {one.data_ptr() for one in pair}
    assert len(seen) == 4  # a pair, and the one before it while this one is taken


def test_other_shapes_and_small_ones_are_new() -> None:
    buffers = ReceiveBuffers(torch.device("cpu"))
    other = TensorSpec((1 << 15, 2), torch.float32, gradient=True)
    assert (buffers.take(LARGE).shape, buffers.take(other).shape) == ((1 << 16,), (1 << 15, 2))
    buffers.take(SMALL)
    assert SMALL not in buffers._made
