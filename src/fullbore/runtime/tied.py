"""Weights that several ranks hold: one value, several copies, one gradient.

A tied weight has a copy on each rank with a stage that uses it; where two streams meet every rank from opposite ends,
every weight has one in the mirror of its stage too. All start with the owner's bits. After the last backward the
copies' gradients are summed, so every copy takes the same optimizer step and stays equal bit by bit. That happens
before the norm, where the weight counts once (for the rank that owns it).

What a forward writes into its copy is no gradient that could be added up, and is refused: `max_norm` of an embedding
before anything is computed, any other in the first step that writes. (Not seen: what goes past autograd's count of
versions, through ``.data``, and what only an evaluation writes.)

The gradients of one set of ranks travel together: a mirrored stage has hundreds, most of them small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fullbore.errors import ConfigError, ModelError
from fullbore.ids import StageIndex
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.mesh import Mesh

__all__ = ["TiedGradients", "holders_of", "require_no_max_norm"]

_BUCKET_BYTES = 32 << 20
"""Summed at once. A larger gradient goes alone."""


def holders_of(stages: Mapping[StageIndex, Mapping[str, nn.Parameter]], *, mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """The ranks of every weight of the model, its owner first: that of the first stage which has it. The same dict, in
    the same order, on every rank; all call this together.

    Args:
        stages: this rank's, each with its weights by full name.

    Raises:
        ConfigError: on every rank, where a weight is frozen on one rank and trained on another.
    """
    mine = {stage: {name: weight.requires_grad for name, weight in held.items()} for stage, held in stages.items()}
    found: dict[StageIndex, tuple[int, dict[str, bool]]] = {}
    for rank, theirs in enumerate(mesh.gather(mine)):
        found.update({stage: (rank, held) for stage, held in theirs.items()})
    holders: dict[str, list[int]] = {}
    trained: dict[str, bool] = {}
    for _, (rank, held) in sorted(found.items()):
        for name, trains in held.items():
            if trains != trained.setdefault(name, trains):
                raise ConfigError(
                    f"all ranks freeze the same weights, but rank {rank} and rank {holders[name][0]} hold {name} and "
                    "only one of them trains it; set requires_grad on every rank alike"
                )
            ranks = holders.setdefault(name, [])
            if rank not in ranks:
                ranks.append(rank)
    return {name: tuple(ranks) for name, ranks in holders.items()}


def require_no_max_norm(
    modules: Iterable[nn.Module], *, weights: Mapping[str, nn.Parameter], shared: Collection[str]
) -> None:
    """An embedding with ``max_norm`` renormalizes the rows that it looks up, in place.

    Args:
        weights: this rank's, by name.
        shared: those of which another rank holds a copy too.

    Raises:
        ModelError: one does so in a shared weight.
    """
    name_of = {id(weights[name]): name for name in shared}
    for part in (part for module in modules for part in module.modules()):
        if (
            isinstance(part, nn.Embedding | nn.EmbeddingBag)
            and part.max_norm is not None
            and id(part.weight) in name_of
        ):
            raise ModelError(
                f"{name_of[id(part.weight)]} lives on several ranks (it is tied, or the model is held twice), and "
                f"{type(part).__name__}(max_norm={part.max_norm:g}) writes into it in each forward, so that its copies "
                "would drift apart; leave out max_norm, or neither tie this weight nor hold the model twice"
            )


@dataclass(frozen=True, slots=True)
class _Shared:
    """Weights that the same ranks hold."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    group: dist.ProcessGroup | None


class TiedGradients:
    """The weights that live on more than one rank.

    ``holders``: the ranks of each weight, its owner first, in the same order on every rank (`holders_of`). So is the
    order in which groups are made.
    """

    def __init__(self, holders: Mapping[str, Sequence[int]], *, mesh: Mesh, timeout_s: float) -> None:
        self._mesh = mesh
        self._rank = mesh.rank
        self._owner = {name: ranks[0] for name, ranks in holders.items()}
        names: dict[tuple[int, ...], list[str]] = {}
        for name, ranks in holders.items():
            if len(ranks) > 1:
                names.setdefault(tuple(sorted(ranks)), []).append(name)
        self._shared = [
            _Shared(ranks, tuple(held), mesh.new_group(ranks, timeout_s=timeout_s)) for ranks, held in names.items()
        ]
        self._earlier: dict[str, Tensor] = {}
        self._versions: dict[str, int] = {}

    def close(self) -> None:
        """Let go of the groups."""
        for group in {id(shared.group): shared.group for shared in self._shared}.values():
            if group is not None:
                self._mesh.leave(group)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights this rank shares with another."""
        return tuple(name for shared in self._here for name in shared.names)

    def owns(self, name: str) -> bool:
        """Does this rank count the weight in norms and totals?"""
        return self._owner.get(name, self._rank) == self._rank

    def make_equal(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Give every copy the owner's bits. (Drawn weights are equal already; a user's own module may not be.)"""
        for shared in self._here:
            for name in shared.names:
                source = self._mesh.ranks[self._owner[name]]
                value = weights[name].detach()
                self._mesh.together(partial(dist.broadcast, value, src=source, group=shared.group))

    def begin(self, gradients: GradientStore, *, weights: Mapping[str, nn.Parameter]) -> None:
        """Set aside what earlier steps have added up: it is summed over ranks already. Note how the copies are now."""
        self._versions = {name: weights[name]._version for name in self.names}
        taken = {name: gradients.take(name) for name in self.names}
        self._earlier = {name: gradient for name, gradient in taken.items() if gradient is not None}

    def reduce(self, gradients: GradientStore, *, weights: Mapping[str, nn.Parameter]) -> None:
        """Sum every shared weight's gradient of this step over the ranks that hold it. One that no microbatch of any
        copy has reached, frozen or unused, has none afterwards either. Every rank calls this.

        Raises:
            ModelError: on every rank, if a forward of any has written into its copy of a weight.
        """
        if not self._shared:
            return
        reached = self._reached(gradients, weights)
        for shared in self._here:
            held = [gradients.of(name) for name in shared.names if name in reached]
            for bucket in _buckets(held):
                self._sum(bucket, shared.group)
        for name, earlier in self._earlier.items():
            gradients.of(name).add_(earlier)
        self._earlier = {}

    @property
    def _here(self) -> list[_Shared]:
        return [shared for shared in self._shared if self._rank in shared.ranks]

    def _reached(self, gradients: GradientStore, weights: Mapping[str, nn.Parameter]) -> set[str]:
        """Of which shared weights any copy has a gradient, once it is known that nobody has written into one."""
        every = [name for shared in self._shared for name in shared.names]
        mine = gradients.gradients()
        changed = {name for name, version in self._versions.items() if weights[name]._version != version}
        flags = self._mesh.max([float(name in held) for held in (mine, changed) for name in every])
        written = [name for name, flag in zip(every, flags[len(every) :], strict=True) if flag]
        if written:
            raise ModelError(
                f"a weight that lives on several ranks (it is tied, or the model is held twice) does not change within "
                f"a step, and something wrote into {', '.join(written[:3])}{' and more' if len(written) > 3 else ''} "
                "in this one, so that its copies may differ now; change it between steps, on every rank alike, or "
                "neither tie it nor hold the model twice"
            )
        return {name for name, flag in zip(every, flags, strict=False) if flag}

    def _sum(self, tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        if len(tensors) == 1 and tensors[0].is_contiguous():
            self._mesh.together(partial(dist.all_reduce, tensors[0], group=group))
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._mesh.together(partial(dist.all_reduce, flat, group=group))
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of one dtype, each as long as it stays below the size of a bucket. The same on every rank."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
