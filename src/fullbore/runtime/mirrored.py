"""What holding a model twice asks of it beside its weights, which `fullbore.runtime.tied` keeps equal.

Buffers start equal. What a forward writes into one is no gradient that could be added up: running statistics of two
copies would each see half of the microbatches, and neither what one process sees. So these are refused: those of a
known class before anything is computed, any other in the first step that writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.ir.schedule import Schedule
from fullbore.models.statistics import counts_its_input
from fullbore.runtime.mesh import Mesh

__all__ = ["BufferState", "buffer_state", "require_no_statistics", "require_unwritten", "share_buffers"]

BufferState = Sequence[tuple[str, int, int]]
"""Class and name, identity and version of every buffer: a write changes one of the last two."""


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


def buffer_state(modules: Iterable[nn.Module]) -> BufferState:
    return [
        (f"{type(part).__name__}.{name}", id(held), held._version)
        for module in modules
        for part in module.modules()
        for name, held in part.named_buffers(recurse=False)
    ]


def require_unwritten(before: BufferState, modules: Iterable[nn.Module], *, schedule: Schedule, mesh: Mesh) -> None:
    """After a step, whose beginning was ``before``; with one stream nothing is asked. Every rank calls this.

    Raises:
        ModelError: on every rank, if a forward has written into a buffer of any.
    """
    if schedule.placement.num_streams == 1:
        return
    here = sorted({name for name, _, _ in set(buffer_state(modules)) ^ set(before)})
    found = sorted({name for names in mesh.gather(here) for name in names})
    if found:
        raise ModelError(
            f"{schedule.name} holds the model twice, and a forward writes into {', '.join(found[:3])}"
            f"{' and more' if len(found) > 3 else ''}: each copy sees its own half of the microbatches, so these "
            "buffers are wrong now; use a schedule with one stream"
        )


@torch.no_grad()
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
