"""The loss over the whole batch, on every rank, from the parts of it that each rank has."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fullbore.runtime.mesh import Mesh

__all__ = ["global_loss"]


def global_loss(
    sums: Sequence[Tensor | None], *, count: int, mesh: Mesh, auxiliary: Sequence[Tensor | None] = ()
) -> float:
    """The sum of all losses by the number of items that count, and what the layers added. Every rank calls this.

    Reads the tensors, so it waits for what computes them.

    Args:
        sums: of this rank's stages; only the last of a stream has one.
        auxiliary: of this rank's stages, means already; any may have one.
    """
    mine = [sum(float(value) for value in values if value is not None) for values in (sums, auxiliary)]
    total, added = mesh.sum(mine)
    return (total / count if count else 0.0) + added
