"""What holding a model twice asks of it beside its weights, which `fullbore.runtime.tied` keeps equal.

Buffers start equal. What a forward writes into one is no gradient that could be added up: running statistics of two
copies would each see half of the microbatches, and neither what one process sees. So these are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.ir.schedule import Schedule
from fullbore.models.statistics import counts_its_input
from fullbore.runtime.mesh import Mesh

__all__ = ["require_no_statistics", "share_buffers"]


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
