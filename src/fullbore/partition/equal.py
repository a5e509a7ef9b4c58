"""The equal split: layers counted, not weighed. ``embed`` and ``head`` count as layers: 8 blocks over 2 are 5, 5."""

from __future__ import annotations

from fullbore.partition.min_max import refuse_impossible

__all__ = ["equal"]


def equal(num_layers: int, *, num_stages: int) -> tuple[int, ...]:
    """Layers per stage; what is left over goes to the first stages, one each.

    Raises:
        PartitionError: fewer layers than stages.
    """
    refuse_impossible(num_layers=num_layers, num_stages=num_stages)
    each, over = divmod(num_layers, num_stages)
    return tuple(each + (1 if stage < over else 0) for stage in range(num_stages))
