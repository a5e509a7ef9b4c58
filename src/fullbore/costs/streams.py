"""Streams: what is known of the cut of one stream, spread over all stages of a placement.

A model is cut once, into as many runs of layers as a stream has stages. With two streams the second holds the same runs
from the other end, so stage costs and message sizes come back mirrored. Links do not: they belong to neighbouring
ranks, and both streams cross them. With one stream everything is as it was. p = 3, two streams:

    runs            a b c    ->  stages      a b c c b a
    message sizes   x y      ->  boundaries  x y 0 y x
    links           u w      ->  boundaries  u w - u w
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fullbore.costs.links import Link
from fullbore.errors import CostsError
from fullbore.ids import StageIndex
from fullbore.ir.placement import Placement

__all__ = ["links_over", "sizes_over", "stages_over"]

_T = TypeVar("_T")


def stages_over(runs: Sequence[_T], placement: Placement) -> tuple[_T, ...]:
    """One value for each stage, of one for each run of layers."""
    return tuple(runs[placement.place_of(StageIndex(stage))] for stage in range(placement.num_stages))


def sizes_over(sizes: Sequence[int], placement: Placement) -> tuple[int, ...]:
    """One message size for each boundary between stages s and s + 1, of one for each cut."""
    return tuple(sizes) if placement.num_streams == 1 else (*sizes, 0, *reversed(sizes))


def links_over(links: Sequence[Link], placement: Placement) -> tuple[Link, ...]:
    """One link for each boundary between stages s and s + 1, of one for each boundary of a stream; none stays none.

    Raises:
        CostsError: not one link a boundary.
    """
    count = placement.stages_per_stream - 1
    if links and len(links) != count:
        raise CostsError(f"one link for each of the {count} boundaries (given {len(links)})")
    if not links or placement.num_streams == 1:
        return tuple(links)
    return (*links, Link(), *links)
