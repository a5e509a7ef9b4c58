"""Program: a schedule with its communication made explicit. What the executor walks and `lower` makes.

A lane carries the messages of one (sender, receiver, payload), in the sender's program order, over a
communicator of its own. One lane for both directions would deadlock under NCCL's rules (FIFO, rendezvous,
no tags) in plain 1F1B at any depth; `tests` show both.
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.ids import Rank
from fullbore.ir.action import Instruction, Message, Payload
from fullbore.ir.placement import Placement

__all__ = ["Lane", "Program"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One direction between two ranks."""

    sender: Rank
    receiver: Rank
    payload: Payload
    messages: tuple[Message, ...]
    """In the order in which the sender sends them; receives are posted in this order too."""

    depth: int
    """How many receives may be posted and not yet consumed. At least what the receiver's order needs."""

    def __str__(self) -> str:
        return f"lane {self.sender}->{self.receiver} ({self.payload.value}s)"


@dataclass(frozen=True, slots=True)
class Program:
    """The instructions of every rank, and the lanes that connect them."""

    placement: Placement
    num_microbatches: int
    instructions: tuple[tuple[Instruction, ...], ...]
    """Indexed by rank."""

    lanes: tuple[Lane, ...]
    """Indexed by `Send.lane` and `Recv.lane`; in the same order on every rank, so communicators match."""

    num_slices: int = 1
    """As in the schedule."""

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks
