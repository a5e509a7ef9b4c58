"""Actions: what a rank does, one at a time.

A schedule is made of `Compute` actions only. Lowering (`fullbore.ir.lower`) adds `Send` and `Recv`.
The text of a compute action is stage, kind, microbatch: ``2F0``. That is also the form of
torch.distributed.pipelining, so schedules travel both ways. Where a schedule cuts sequences, an action names its slice
too: ``2F0.1``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, SliceIndex, StageIndex

__all__ = ["Compute", "Instruction", "Kind", "Message", "Payload", "Recv", "Send", "unit_text"]


class Kind(StrEnum):
    """The kinds of compute action; the letters mean this everywhere in fullbore."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    RECOMPUTE = "R"

    @property
    def makes_input_gradient(self) -> bool:
        """Does this kind produce the gradient that travels upstream?"""
        return self in (Kind.BACKWARD, Kind.BACKWARD_INPUT)

    @property
    def makes_weight_gradient(self) -> bool:
        """Does this kind finish the gradient of the stage's weights?"""
        return self in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)

    @property
    def frees_activation(self) -> bool:
        """Is this the last use of the stage's stashed activation?"""
        return self.makes_weight_gradient


class Payload(StrEnum):
    """What a message carries, which is also the direction in which it travels."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"


def unit_text(microbatch: MicrobatchIndex, slice_index: SliceIndex | None) -> str:
    """A microbatch, ``0``, or a slice of it, ``0.1``."""
    return f"{microbatch}" if slice_index is None else f"{microbatch}.{slice_index}"


_COMPUTE_TEXT = re.compile(r"(0|[1-9][0-9]{0,8})([FBIWR])(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True)
class Compute:
    """One kind of work of one stage on one microbatch."""

    stage: StageIndex
    kind: Kind
    microbatch: MicrobatchIndex
    slice_index: SliceIndex | None = None
    """None: the whole sequence."""

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.unit}"

    @property
    def unit(self) -> str:
        """What goes through the stages: the microbatch, ``0``, or a slice of it, ``0.1``."""
        return unit_text(self.microbatch, self.slice_index)

    def of_kind(self, kind: Kind) -> Compute:
        """The action of another kind of the same stage on the same data."""
        return Compute(self.stage, kind, self.microbatch, self.slice_index)

    @classmethod
    def parse(cls, text: str) -> Compute:
        """The inverse of `str`. Raises `ScheduleError` on anything else."""
        match = _COMPUTE_TEXT.fullmatch(text)
        if match is None:
            raise ScheduleError(
                f"an action is written stage, kind, microbatch, as in 2F0, with kind one of F B I W R (given {text!r})"
            )
        cut = None if match[4] is None else SliceIndex(int(match[4]))
        return cls(StageIndex(int(match[1])), Kind(match[2]), MicrobatchIndex(int(match[3])), cut)


@dataclass(frozen=True, slots=True)
class Message:
    """One boundary crossing: the output of ``producer`` for one microbatch.

    `Payload.ACTIVATION` is the output of a stage, wanted by the next one; `Payload.GRADIENT` is the input gradient of a
    stage, wanted by the one before (`fullbore.ir.flow.consumer_of`). ``stage`` is always the stage that *produced* it.
    """

    payload: Payload
    stage: StageIndex
    microbatch: MicrobatchIndex
    slice_index: SliceIndex | None = None
    """None: of the whole sequence."""

    def __str__(self) -> str:
        cut = "" if self.slice_index is None else f", slice {self.slice_index}"
        return f"{self.payload.value} of stage {self.stage}, microbatch {self.microbatch}{cut}"


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending a message on a lane; never waited for by the program."""

    message: Message
    lane: int


@dataclass(frozen=True, slots=True)
class Recv:
    """Wait until a message of a lane has arrived."""

    message: Message
    lane: int


Instruction = Compute | Send | Recv
"""What a lowered program is made of."""
