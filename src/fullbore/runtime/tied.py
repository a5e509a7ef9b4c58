"""Tied weights across stages: one value, several copies, one gradient.

Each stage that uses a tied weight holds a copy; all start with the owner's bits. After the last backward the copies'
gradients are summed, so every copy takes the same optimizer step and stays equal bit by bit. That happens
before the norm, where the weight counts once (for the rank that owns it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from fullbore.models.layered import TiedWeight
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.mesh import Mesh

__all__ = ["TiedGradients"]


@dataclass(frozen=True, slots=True)
class _Shared:
    name: str
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None


class TiedGradients:
    """The tied weights that live on more than one rank.

    ``rank_of_layer`` is the pipeline rank of each layer. Groups are made on every rank in the model's order.
    """

    def __init__(
        self, tied: Sequence[TiedWeight], *, rank_of_layer: Sequence[int], mesh: Mesh, timeout_s: float
    ) -> None:
        self._mesh = mesh
        self._rank = mesh.rank
        self._shared: list[_Shared] = []
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for weight in tied:
            ranks = tuple(sorted({rank_of_layer[layer] for layer in weight.layers}))
            if len(ranks) < 2:
                continue
            if ranks not in groups:
                groups[ranks] = mesh.new_group(ranks, timeout_s=timeout_s)
            self._shared.append(_Shared(weight.name, ranks, groups[ranks]))
        self._earlier: dict[str, Tensor | None] = {}
        self._owner = {weight.name: rank_of_layer[weight.layers[0]] for weight in tied}

    def close(self) -> None:
        """Let go of the groups."""
        for group in {id(shared.group): shared.group for shared in self._shared}.values():
            if group is not None:
                self._mesh.leave(group)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights this rank shares with another."""
        return tuple(shared.name for shared in self._shared if self._rank in shared.ranks)

    def owns(self, name: str) -> bool:
        """Does this rank count the weight in norms and totals?"""
        return self._owner.get(name, self._rank) == self._rank

    def make_equal(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Give every copy the owner's bits. (Drawn weights are equal already; a user's own module may not be.)"""
        for shared in self._shared:
            if self._rank in shared.ranks:
                source = self._mesh.ranks[self._owner[shared.name]]
                value = weights[shared.name].detach()
                self._mesh.together(partial(dist.broadcast, value, src=source, group=shared.group))

    def begin(self, gradients: GradientStore) -> None:
        """Set aside what earlier steps have added up: it is summed over ranks already."""
        for shared in self._shared:
            if self._rank in shared.ranks:
                self._earlier[shared.name] = gradients.take(shared.name)

    def reduce(self, gradients: GradientStore) -> None:
        """Sum every shared weight's gradient of this step over the ranks that use it. A frozen one has none."""
        for shared in self._shared:
            if self._rank in shared.ranks and gradients.trains(shared.name):
                gradient = gradients.of(shared.name)
                self._mesh.together(partial(dist.all_reduce, gradient, group=shared.group))
                earlier = self._earlier.pop(shared.name, None)
                if earlier is not None:
                    gradient.add_(earlier)
