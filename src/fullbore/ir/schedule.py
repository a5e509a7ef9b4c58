"""Schedule: a placement and one order of compute actions per rank. Data, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.placement import Placement

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every rank computes, in which order.

    Made by a pure function of sizes and costs; changed only by passes ``Schedule -> Schedule``. It holds no
    communication: `fullbore.ir.lower.lower` derives that. Construction does not check it:
    `fullbore.ir.validate.validate` does, by named rules.
    """

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[tuple[Compute, ...], ...]
    """One order a rank, indexed by rank."""

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    def order_of(self, rank: Rank) -> tuple[Compute, ...]:
        return self.orders[rank]
