"""Schedule: a placement and one order of compute actions per rank. Data, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement

__all__ = ["Overlap", "Schedule"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A forward and the backward right after it, of two microbatches: one's transfers hide behind the other's work.

    A permission, not a command: who runs one after the other keeps the schedule. PyTorch's ``OVERLAP_F_B``.
    """

    forward: Compute
    backward: Compute

    def __str__(self) -> str:
        return f"{self.forward}&{self.backward}"


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

    num_slices: int = 1
    """Into how many slices the sequences of a microbatch are cut; above 1 every action names its slice."""

    overlaps: frozenset[Overlap] = frozenset()
    """Neighbours in an order that a rank may run at once."""

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def forwards_per_share(self) -> int:
        """Forwards that a rank runs for one microbatch, which together keep its whole share of the activations: one for
        each of its stages that lie on one stream, and for each slice."""
        return self.num_stages // self.num_ranks // self.placement.num_streams * self.num_slices

    @property
    def recomputes(self) -> bool:
        """Has it recomputations as actions (R)?"""
        return any(action.kind is Kind.RECOMPUTE for order in self.orders for action in order)

    def split_on(self, stage: StageIndex) -> frozenset[MicrobatchIndex]:
        """The microbatches whose backward on this stage is split into I and W."""
        return self._with(Kind.BACKWARD_INPUT, stage)

    def recomputed_on(self, stage: StageIndex) -> frozenset[MicrobatchIndex]:
        """The microbatches that have an R on this stage."""
        return self._with(Kind.RECOMPUTE, stage)

    def in_turn(self) -> Schedule:
        """The same without pairs: what it is where a rank runs one action after the other, as fullbore's do."""
        return replace(self, overlaps=frozenset())

    def order_of(self, rank: Rank) -> tuple[Compute, ...]:
        return self.orders[rank]

    def _with(self, kind: Kind, stage: StageIndex) -> frozenset[MicrobatchIndex]:
        order = self.orders[self.placement.rank_of(stage)]
        return frozenset(a.microbatch for a in order if a.stage == stage and a.kind is kind)
