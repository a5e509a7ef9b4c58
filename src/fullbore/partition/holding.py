"""Holding: which stages have any of some layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from fullbore.costs.streams import stages_over
from fullbore.ids import StageIndex
from fullbore.ir.placement import Placement

__all__ = ["stages_holding"]


def stages_holding(
    names: Collection[str], *, layer_names: Sequence[str], layers_per_stage: Sequence[int], placement: Placement
) -> tuple[StageIndex, ...]:
    """In order, those of both streams where there are two. A name that is no layer is in no stage.

    Args:
        layers_per_stage: of one stream.
    """
    runs = [layer_names[first:end] for first, end in pairwise((0, *accumulate(layers_per_stage)))]
    return tuple(
        StageIndex(stage)
        for stage, run in enumerate(stages_over(runs, placement))
        if any(name in names for name in run)
    )
