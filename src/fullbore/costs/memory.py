"""StageMemory: what one stage keeps. The only place where stage memory is added up from layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fullbore.costs.layer import LayerCost
from fullbore.errors import CostsError

__all__ = ["StageMemory"]


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one stage: what is always there, and what every microbatch in flight adds."""

    fixed_bytes: int
    """Parameters and optimizer state."""

    activation_bytes: int
    """Kept from a microbatch's forward until the last use in its backward."""

    def __post_init__(self) -> None:
        if min(self.fixed_bytes, self.activation_bytes) < 0:
            raise CostsError(f"sizes must be at least 0 bytes (given {self})")

    @classmethod
    def of_layers(cls, layers: Iterable[LayerCost]) -> StageMemory:
        """A stage keeps the sum of its layers."""
        held = tuple(layers)
        return cls(
            sum(layer.parameter_bytes + layer.optimizer_bytes for layer in held),
            sum(layer.activation_bytes for layer in held),
        )

    def with_in_flight(self, microbatches: int) -> int:
        """Bytes with the activations of that many microbatches."""
        return self.fixed_bytes + self.activation_bytes * microbatches
