"""What holding a model twice asks of it beside its weights, which `fullbore.runtime.tied` keeps equal.

Buffers start equal. What a forward writes into one is no gradient that could be added up: running statistics of two
copies would each see half of the microbatches, and neither what one process sees. So these are refused: those of a
known class before anything is computed, any other in the first step that leaves a saved buffer changed.

A buffer that is not saved (``persistent=False``) is no state of the model but made from something else, like rotary
frequencies for a longer sequence. It may be made anew, provided that both copies come to the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.ir.schedule import Schedule
from fullbore.models.statistics import counts_its_input
from fullbore.runtime.mesh import Mesh

__all__ = ["BufferWatch", "require_no_statistics", "share_buffers"]


def require_no_statistics(modules: Iterable[nn.Module], *, schedule: Schedule) -> None:
    """With one stream nothing is asked of a rank's stages.

    Raises:
        ModelError: a module counts its input into running statistics.
    """
    if schedule.placement.num_streams == 1:
        return
    parts = [part for module in modules for part in module.modules()]
    found = sorted({type(part).__name__ for part in parts if counts_its_input(part)})
    if found:
        raise ModelError(
            f"{schedule.name} holds the model twice, and {', '.join(found)} keeps running statistics: each copy would "
            "see its own half of the microbatches; use a schedule with one stream, put the layer into evaluation mode "
            "first, or make it with track_running_stats=False"
        )


@dataclass(frozen=True, slots=True)
class _Buffer:
    stage: int
    """Which of this rank's."""

    key: str
    """The same in every copy of a stage, and nowhere else."""

    said: str
    saved: bool
    value: Tensor


class BufferWatch:
    """Over one step, what its forwards do to the buffers of a model that is held twice. Of a model that is held once
    nothing is asked."""

    def __init__(self, stages: Iterable[tuple[str, nn.Module]], *, schedule: Schedule, mesh: Mesh) -> None:
        """``stages``: this rank's, each with the name of its first layer."""
        self._stages = () if schedule.placement.num_streams == 1 else tuple(stages)
        self._name = schedule.name
        self._mesh = mesh
        self._before: dict[tuple[int, str], Tensor] = {}

    def begin(self) -> None:
        """A step is about to run."""
        self._before = {(one.stage, one.key): one.value.detach().clone() for one in self._buffers()}

    def require_kept(self) -> None:
        """After the step. Every rank calls this.

        Raises:
            ModelError: on every rank, if a saved buffer of any has changed, or copies of another one differ.
        """
        if not self._stages:
            return
        now = list(self._buffers())
        changed = [one for one in now if _differ(self._before.get((one.stage, one.key)), one.value)]
        self._before = {}
        by_rank: Sequence[Sequence[_Changed]] = self._mesh.gather(
            [_Changed(one.key, one.said, one.saved) for one in changed]
        )
        everywhere = {one.key: one for changes in by_rank for one in changes}
        self._refuse(
            {one.said for one in everywhere.values() if one.saved},
            "a forward writes into",
            "each copy sees its own half of the microbatches, so these buffers are wrong now",
        )
        if not everywhere:
            return
        mine = [(one.key, zlib.crc32(_bits(one.value).cpu().numpy().data)) for one in now if one.key in everywhere]
        copies: dict[str, set[int]] = {}
        for key, digest in (pair for pairs in self._mesh.gather(mine) for pair in pairs):
            copies.setdefault(key, set()).add(digest)
        self._refuse(
            {everywhere[key].said for key, digests in copies.items() if len(digests) > 1},
            "the two copies came to different values of",
            "they are made from what a copy has seen so far, and each sees its own half of the microbatches",
        )

    def _refuse(self, said: Collection[str], what: str, why: str) -> None:
        found = sorted(said)
        if found:
            raise ModelError(
                f"{self._name} holds the model twice, and {what} {', '.join(found[:3])}"
                f"{' and more' if len(found) > 3 else ''}: {why}; use a schedule with one stream"
            )

    def _buffers(self) -> Iterator[_Buffer]:
        for stage, (layer, module) in enumerate(self._stages):
            for prefix, part in module.named_modules():
                for name, held in part.named_buffers(recurse=False):
                    saved = name not in part._non_persistent_buffers_set
                    yield _Buffer(stage, f"{layer}: {prefix}.{name}", f"{type(part).__name__}.{name}", saved, held)


@dataclass(frozen=True, slots=True)
class _Changed:
    key: str
    said: str
    saved: bool


def _differ(one: Tensor | None, other: Tensor) -> bool:
    """In any bit. (What is not a number differs from itself, but its bits do not.)"""
    return (
        one is None or one.shape != other.shape or one.dtype != other.dtype or not torch.equal(_bits(one), _bits(other))
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@torch.inference_mode()  # in which a buffer that was made in it may be written too
def share_buffers(buffers: Mapping[str, Tensor], *, schedule: Schedule, mesh: Mesh) -> None:
    """Give every rank that holds a buffer of some name the bits that the first of them has; with one stream no two do.
    (A user's own module may have drawn them without a seed.) Every rank calls this."""
    if schedule.placement.num_streams == 1:
        return
    by_rank: Sequence[Sequence[str]] = mesh.gather(list(buffers))
    owners = {name: rank for rank, names in reversed(list(enumerate(by_rank))) for name in names}
    for name, owner in sorted(owners.items()):
        value = mesh.share(buffers[name].cpu() if mesh.rank == owner else None, owner=owner)
        if name in buffers and mesh.rank != owner:
            assert value is not None, "the owner has one"
            buffers[name].copy_(value)
