"""Delays: how long each boundary keeps a message under way. One rule, used by every simulation.

Boundary s lies between stage s and stage s + 1, whichever way a message goes, so there are num_stages - 1 of them. It
costs nothing where both stages are on one rank. In a bidirectional placement nothing crosses the middle boundary: no
stream leads over it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ir.placement import Placement

__all__ = ["boundary_delays", "require_costs"]


def require_costs(costs: Sequence[StageCost], *, num_stages: int) -> None:
    """Raises `CostsError` unless there is one cost a stage."""
    if len(costs) != num_stages:
        raise CostsError(f"a simulation needs one cost for each of the {num_stages} stages (given {len(costs)})")


def boundary_delays(
    placement: Placement, *, links: Sequence[Link] = (), message_bytes: Sequence[int] | int = 0
) -> tuple[int, ...]:
    """From the end of the producer to arrival, for every boundary.

    Args:
        links: one for each boundary (none: all free); used only where the boundary joins different ranks.
        message_bytes: one number for all boundaries, or one for each.

    Raises:
        CostsError: not one link or size a boundary.
    """
    num_boundaries = placement.num_stages - 1
    sizes = [message_bytes] * num_boundaries if isinstance(message_bytes, int) else list(message_bytes)
    held = list(links) or [Link()] * num_boundaries
    for noun, given in (("link", len(held)), ("message size", len(sizes))):
        if given != num_boundaries:
            raise CostsError(
                f"a simulation needs one {noun} for each of the {num_boundaries} boundaries (given {given})"
            )
    ranks = placement.ranks
    return tuple(
        link.delay_ns(size) if ranks[boundary] != ranks[boundary + 1] else 0
        for boundary, (link, size) in enumerate(zip(held, sizes, strict=True))
    )
