"""WeightQueue: the weight gradients that a backward for the input has left to do.

For each use of a module an entry: what its weights' gradients are made of (usually the operation's input and the
gradient of its output). Adding them up is done as autograd does it: several uses of one weight in one backward are
summed first, in the order in which the backward came by, and reach ``.grad`` once; then post-accumulate hooks run.
So a weight's gradient has the bits that one whole backward gives.

Two halves have to take no longer than one whole, for small layers too: what can be known before a step is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

__all__ = ["Debtor", "WeightQueue"]


class Debtor(Protocol):
    """A module with weights, between I and W."""

    @property
    def trained(self) -> Sequence[nn.Parameter]:
        """Its weights that get a gradient."""

    @property
    def keys(self) -> Sequence[int]:
        """What each of these is known by: their ``id``."""

    def gradients(self, gradient: Tensor, kept: Sequence[Tensor]) -> Sequence[Tensor]:
        """New tensors, one for each of ``trained``: from the gradient of the output and what was kept."""


class WeightQueue:
    """What one stage owes for one microbatch."""

    __slots__ = ("_num_bytes", "_owed", "add")

    def __init__(self) -> None:
        self._owed: deque[tuple[Debtor, Tensor, Sequence[Tensor]]] = deque()
        self._num_bytes: int | None = None
        self.add = self._owed.append
        """Leave ``gradients(gradient, kept)`` of a module for later. The tensors stay as they are until then."""

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def num_bytes(self) -> int:
        """Bytes of all storages that are kept alive; one that several entries share counts once. Looked up once, when
        the queue is complete."""
        if self._num_bytes is None:
            sizes: dict[int, int] = {}
            for _, gradient, kept in self._owed:
                for tensor in (gradient, *kept):
                    storage = tensor.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
            self._num_bytes = sum(sizes.values())
        return self._num_bytes

    def run(self) -> None:
        """Make every gradient that is owed and add it to its weight. Each entry is let go of as soon as it is done."""
        left = self._uses()
        sums: dict[int, Tensor] = {}
        owed = self._owed
        with torch.no_grad():
            while owed:
                module, gradient, kept = owed.popleft()
                found = module.gradients(gradient, kept)
                for weight, key, made in zip(module.trained, module.keys, found, strict=True):
                    if made.dtype is not weight.dtype:
                        made = made.to(weight.dtype)
                    if key in left:
                        left[key] -= 1
                        if key in sums:
                            made = sums.pop(key).add_(made)
                        if left[key]:
                            sums[key] = made
                            continue
                    _accumulate(weight, made)
        self._num_bytes = 0

    def _uses(self) -> dict[int, int]:
        """How often each weight is used, if any is used more than once."""
        keys = [key for module, _, _ in self._owed for key in module.keys]
        return {} if len(set(keys)) == len(keys) else Counter(keys)


def _accumulate(weight: nn.Parameter, gradient: Tensor) -> None:
    """What autograd does at a leaf: write or add, then call hooks. It would copy a gradient that Python still holds."""
    held = weight.grad
    if held is not None:
        held.add_(gradient)
    elif gradient.stride() == weight.stride():
        weight.grad = gradient
    else:
        weight.grad = torch.empty_like(weight).copy_(gradient)
    hooks = weight._post_accumulate_grad_hooks
    if hooks:
        for hook in tuple(hooks.values()):
            hook(weight)
