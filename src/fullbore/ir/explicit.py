"""ExplicitSchedule: compute orders with their sends and receives written between the actions, as files exchange them.

    rank 0   0F0  0SEND_F0  0RECV_B0  0B0
    rank 1   1RECV_F0  1F0  1B0  1SEND_B0

The cells are those of torch.distributed.pipelining: a SEND names the stage that sends, a RECV the stage that receives,
F is an activation and B a gradient. There are no lanes: between two ranks messages are told apart by their order only.
It is not what the executor walks (`fullbore.ir.program` is); its compute part can be lowered like any schedule.
Construction does not check it: `fullbore.ir.explicit_spec` does, by named rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.ids import MicrobatchIndex, SliceIndex, StageIndex
from fullbore.ir.action import Compute, Message, Payload, Recv, Send, unit_text
from fullbore.ir.flow import Route, consumer_of
from fullbore.ir.placement import Placement
from fullbore.ir.program import Program
from fullbore.ir.schedule import Overlap, Schedule

__all__ = ["Cell", "ExplicitSchedule", "RecvCell", "SendCell", "Transfer", "explicit_of", "recv_of", "send_of"]


@dataclass(frozen=True, slots=True)
class SendCell:
    """Start sending the output of the stage."""

    stage: StageIndex
    payload: Payload
    microbatch: MicrobatchIndex
    slice_index: SliceIndex | None = None

    def __str__(self) -> str:
        return f"{self.stage}SEND_{_letter(self.payload)}{unit_text(self.microbatch, self.slice_index)}"

    def message(self, route: Route) -> Message | None:
        """What it sends; None where no stage wants it."""
        wanted = route.next_stage if self.payload is Payload.ACTIVATION else route.previous_stage
        missing = wanted(self.stage) is None
        return None if missing else Message(self.payload, self.stage, self.microbatch, self.slice_index)


@dataclass(frozen=True, slots=True)
class RecvCell:
    """Receive an input of the stage."""

    stage: StageIndex
    payload: Payload
    microbatch: MicrobatchIndex
    slice_index: SliceIndex | None = None

    def __str__(self) -> str:
        return f"{self.stage}RECV_{_letter(self.payload)}{unit_text(self.microbatch, self.slice_index)}"

    def message(self, route: Route) -> Message | None:
        """What it receives; None where no stage makes it."""
        before = route.previous_stage if self.payload is Payload.ACTIVATION else route.next_stage
        source = before(self.stage)
        return None if source is None else Message(self.payload, source, self.microbatch, self.slice_index)


Transfer = SendCell | RecvCell
Cell = Compute | SendCell | RecvCell
"""What a row is made of."""


@dataclass(frozen=True, slots=True)
class ExplicitSchedule:
    """What every rank computes, sends and receives, in which order."""

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[tuple[Cell, ...], ...]
    """One row a rank, indexed by rank."""

    overlaps: frozenset[Overlap] = frozenset()
    """As in a schedule; the two stand side by side in a row too."""

    num_slices: int = 1

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    def compute_part(self) -> Schedule:
        """The same without its communication."""
        orders = tuple(tuple(cell for cell in row if isinstance(cell, Compute)) for row in self.orders)
        return Schedule(self.name, self.placement, self.num_microbatches, orders, self.num_slices, self.overlaps)


def send_of(message: Message) -> SendCell:
    """The cell that sends it."""
    return SendCell(message.stage, message.payload, message.microbatch, message.slice_index)


def recv_of(message: Message, route: Route) -> RecvCell:
    """The cell that receives it."""
    return RecvCell(consumer_of(message, route), message.payload, message.microbatch, message.slice_index)


def explicit_of(program: Program, *, name: str) -> ExplicitSchedule:
    """A lowered program as rows: each receive right before its use, each send right after its action."""
    rows = []
    for instructions in program.instructions:
        row: list[Cell] = []
        for instruction in instructions:
            match instruction:
                case Send(message):
                    row.append(send_of(message))
                case Recv(message):
                    row.append(recv_of(message, program.placement))
                case Compute():
                    row.append(instruction)
        rows.append(tuple(row))
    return ExplicitSchedule(
        name, program.placement, program.num_microbatches, tuple(rows), num_slices=program.num_slices
    )


def _letter(payload: Payload) -> str:
    return "F" if payload is Payload.ACTIVATION else "B"
