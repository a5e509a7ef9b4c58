"""StageCost: what one stage takes for one microbatch, kind by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fullbore.costs.layer import LayerCost
from fullbore.errors import CostsError
from fullbore.ir.action import Kind

__all__ = ["StageCost"]


@dataclass(frozen=True, slots=True)
class StageCost:
    """Integer times (nanoseconds, or unit-free ticks) of one microbatch on one stage."""

    forward: int
    backward_input: int
    backward_weight: int
    recompute: int | None = None
    """Of an R, an action of its own, where the schedule has it; None: as long as the forward. A recomputation inside
    the backward is part of ``backward_input``."""

    def __post_init__(self) -> None:
        if min(self.forward, self.backward_input, self.backward_weight, self.recompute or 0) < 0:
            raise CostsError(f"times must be at least 0 (given {self})")

    @classmethod
    def of_layers(cls, layers: Iterable[LayerCost]) -> StageCost:
        """A stage takes the sum of its layers."""
        held = tuple(layers)
        return cls(
            sum(layer.forward_ns for layer in held),
            sum(layer.backward_input_ns for layer in held),
            sum(layer.backward_weight_ns for layer in held),
            sum(layer.recompute_ns for layer in held),
        )

    @property
    def total(self) -> int:
        """Forward and backward, without an R."""
        return self.forward + self.backward_input + self.backward_weight

    @property
    def recomputing_inside(self) -> StageCost:
        """The same stage where what an R takes is part of the backward."""
        return StageCost(self.forward, self.backward_input + self.of(Kind.RECOMPUTE), self.backward_weight, recompute=0)

    def slowed(self, slowness: float) -> StageCost:
        """The same stage where everything takes ``slowness`` times as long."""
        return StageCost(
            round(self.forward * slowness),
            round(self.backward_input * slowness),
            round(self.backward_weight * slowness),
            None if self.recompute is None else round(self.recompute * slowness),
        )

    def of(self, kind: Kind) -> int:
        """The time of one action of this kind."""
        match kind:
            case Kind.FORWARD:
                return self.forward
            case Kind.RECOMPUTE:
                return self.forward if self.recompute is None else self.recompute
            case Kind.BACKWARD_INPUT:
                return self.backward_input
            case Kind.BACKWARD_WEIGHT:
                return self.backward_weight
            case Kind.BACKWARD:
                return self.backward_input + self.backward_weight
