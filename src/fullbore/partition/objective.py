"""What a partition makes even."""

from __future__ import annotations

from enum import StrEnum

from fullbore.costs.layer import LayerCost

__all__ = ["PartitionObjective"]


class PartitionObjective(StrEnum):
    """The weight of a layer. Time is what sets the rhythm; parameters is what other tools balance."""

    TIME = "time"
    PARAMETERS = "parameters"

    def weight(self, layer: LayerCost) -> int:
        return layer.time_ns if self is PartitionObjective.TIME else layer.parameters
