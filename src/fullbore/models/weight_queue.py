"""WeightQueue: the weight gradients that a backward for the input has left to do.

For each use of a weight an entry: what its gradient is made of (usually the operation's input and the gradient of its
output) and the weights. Adding them up is done as autograd does it: several uses of one weight in one backward are
summed first, in the order in which the backward came by, and reach ``.grad`` once; then post-accumulate hooks run.
So a weight's gradient has the bits that one whole backward gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

__all__ = ["Deferral", "WeightQueue"]

Weights = tuple[nn.Parameter | None, ...]


class _MakesGradients(Protocol):
    def weight_gradients(
        self, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]: ...


_Owed = tuple[_MakesGradients, Weights, Sequence[bool], Sequence[Tensor], Tensor]


class WeightQueue:
    """What one stage owes for one microbatch."""

    __slots__ = ("_num_bytes", "_owed")

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self._num_bytes: int | None = None

    def add(
        self,
        operation: _MakesGradients,
        weights: Weights,
        wanted: Sequence[bool],
        kept: Sequence[Tensor],
        gradient: Tensor,
    ) -> None:
        """Leave ``operation.weight_gradients(gradient, kept, wanted)`` for later, one gradient for each of ``weights``.
        Both tensors stay as they are until then."""
        self._owed.append((operation, weights, wanted, kept, gradient))

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def num_bytes(self) -> int:
        """Bytes of all storages that are kept alive; one that several entries share counts once. Looked up once, when
        the queue is complete."""
        if self._num_bytes is None:
            sizes: dict[int, int] = {}
            for _, _, _, kept, gradient in self._owed:
                for tensor in (*kept, gradient):
                    storage = tensor.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
            self._num_bytes = sum(sizes.values())
        return self._num_bytes

    def run(self) -> None:
        """Make every gradient that is owed and add it to its weight. Each entry is let go of as soon as it is done."""
        uses: dict[int, int] = {}
        for _, weights, wanted, _, _ in self._owed:
            for weight, wants in zip(weights, wanted, strict=True):
                if wants:
                    uses[id(weight)] = uses.get(id(weight), 0) + 1
        sums: dict[int, Tensor] = {}
        with torch.no_grad():
            while self._owed:
                operation, weights, wanted, kept, gradient = self._owed.popleft()
                made = operation.weight_gradients(gradient, kept, wanted)
                for weight, wants, one in zip(weights, wanted, made, strict=True):
                    if not wants:
                        continue
                    assert weight is not None
                    assert one is not None, "a gradient that is wanted is made"
                    _add(weight, one.to(weight.dtype), uses=uses, sums=sums)
        self._num_bytes = 0


class Deferral:
    """What the modules of one stage are told.

    One object that all of them hold, and no variable of a thread: on a GPU autograd runs a backward in a thread of its
    own, and recomputation with it.
    """

    __slots__ = ("anchor", "queue", "splits")

    def __init__(self) -> None:
        self.splits = False
        """Will the backward of what runs forward now be split? If not, it is autograd's alone."""
        self.queue: WeightQueue | None = None
        """Where the backward that runs now leaves its weight gradients."""
        self.anchor = torch.zeros(0, requires_grad=True)
        """Makes outputs need a gradient where the input needs none. Never gets one itself."""

    @contextmanager
    def during(self, queue: WeightQueue | None = None) -> Iterator[None]:
        """What runs inside has a split backward, or is one that fills ``queue``."""
        self.splits, self.queue = True, queue
        try:
            yield
        finally:
            self.splits, self.queue = False, None


def _add(weight: nn.Parameter, gradient: Tensor, *, uses: dict[int, int], sums: dict[int, Tensor]) -> None:
    """One use of a weight; the last one in this queue brings the sum into ``.grad``."""
    key = id(weight)
    uses[key] -= 1
    before = sums.pop(key, None)
    if before is not None:
        gradient = before.add_(gradient)
    if uses[key]:
        sums[key] = gradient
    else:
        _accumulate(weight, gradient)


def _accumulate(weight: nn.Parameter, gradient: Tensor) -> None:
    """What autograd does at a leaf: write or add, then call hooks. It would copy a gradient that Python still holds."""
    if weight.grad is not None:
        weight.grad.add_(gradient)
    elif gradient.stride() == weight.stride():
        weight.grad = gradient
    else:
        weight.grad = torch.empty_like(weight).copy_(gradient)
    hooks = weight._post_accumulate_grad_hooks
    if hooks:
        for hook in tuple(hooks.values()):
            hook(weight)
