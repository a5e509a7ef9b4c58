"""Holding: which stages of a cut have any of some layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from fullbore.ids import StageIndex

__all__ = ["stages_holding"]


def stages_holding(
    names: Collection[str], *, layer_names: Sequence[str], layers_per_stage: Sequence[int]
) -> tuple[StageIndex, ...]:
    """In order. A name that is no layer is in no stage."""
    edges = pairwise((0, *accumulate(layers_per_stage)))
    return tuple(
        StageIndex(stage)
        for stage, (first, end) in enumerate(edges)
        if any(name in names for name in layer_names[first:end])
    )
