"""Executor: walks one rank's program. It runs any valid schedule and knows the name of none.

Four rules keep it fast and free of deadlock:

- receives are posted ahead in the sender's order, to the depth that lowering computed for the lane, so a
  message never waits for its buffer and buffers stay bounded;
- a send is started and never waited for before the end of the step;
- between an arrival and its action, and between an action and its send, nothing is done that can be done later:
  others wait for it. Once the message is under way, the executor settles the rest;
- everything is let go of at its last use.

A failure is reported with what the rank was doing: which action, of which step, waiting for which message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fullbore.errors import FullboreError, NeighborLost, RankFailed, ScheduleError, TransferStalled
from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Compute, Kind, Message, Payload
from fullbore.ir.program import Lane, Program
from fullbore.ir.program_spec import check_program
from fullbore.models.layered import Boundary, Microbatch, Parcel, TensorSpec
from fullbore.runtime.device import Mark
from fullbore.runtime.engine import StageEngine
from fullbore.runtime.prepared import Await, Hand, Run, prepare
from fullbore.runtime.processes.blame import blame
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.receive_buffers import ReceiveBuffers
from fullbore.runtime.transport.transport import Arrival, PeerLost, TransferTimeout, Transport
from fullbore.said import first_line

__all__ = ["BoundaryOf", "Executor"]

BoundaryOf = Callable[[Message, Microbatch], Boundary]
"""What crosses at the boundary a message is about, for this microbatch; the same on both ends."""


@dataclass(slots=True)
class _Inbound:
    """The receiving end of a lane during one walk."""

    lane: Lane
    num_posted: int = 0
    num_consumed: int = 0
    posted: dict[int, tuple[tuple[Arrival, ...], Parcel]] = field(default_factory=dict)
    """By the message's place in the lane."""

    @property
    def wants(self) -> bool:
        return self.num_posted < min(len(self.lane.messages), self.num_consumed + self.lane.depth)


@dataclass(slots=True)
class _Walk:
    """The state of one walk through the program."""

    microbatches: Sequence[Microbatch]
    inbound: Mapping[int, _Inbound]
    """By lane number."""

    held: list[Parcel | None]
    """By slot: arrived or produced, and not yet used."""

    period: str
    buffers: ReceiveBuffers
    last: str | None = None
    """The last action that has begun."""

    forms: dict[tuple[int, int], dict[Payload, tuple[TensorSpec, ...]]] = field(default_factory=dict)
    """By place in the stream and microbatch: what crosses behind it in either direction."""

    num_handed: int = 0
    ran: tuple[Compute, Mark, Mark] | None = None
    """An action that is not yet recorded."""

    taken: list[_Inbound] = field(default_factory=list)
    """Ends that may post another receive."""


class Executor:
    """Runs the program of one rank, as often as there are batches."""

    def __init__(
        self,
        program: Program,
        *,
        rank: int,
        engines: Mapping[StageIndex, StageEngine],
        transport: Transport,
        boundary_of: BoundaryOf,
        device: torch.device,
        recorder: StepRecorder,
        board: ProgressBoard | None,
        timeout_s: float,
    ) -> None:
        check_program(program)
        if program.num_slices > 1:
            raise ScheduleError(
                f"a schedule to run has whole microbatches (num_slices={program.num_slices}); this one can be drawn "
                "and simulated"
            )
        for action in program.instructions[rank]:
            if isinstance(action, Compute) and action.kind not in engines[action.stage].kinds:
                raise ScheduleError(
                    f"the engine of stage {action.stage} runs {_list(engines[action.stage].kinds)}; "
                    f"the schedule asks rank {rank} for {action}; choose a schedule without {action.kind}"
                )
        self._program = program
        self._prepared = prepare(program, rank=rank, engines=engines)
        self._rank = Rank(rank)
        self._engines = tuple(engines.values())
        self._transport = transport
        self._boundary_of = boundary_of
        self._device = device
        self.recorder = recorder
        self._board = board
        self.timeout_s = timeout_s
        """How long it waits for another rank. May be changed between runs."""
        self.peak_activations = 0
        """Most stage-microbatches whose activations this rank has held at once, over all runs."""
        self.peak_held_bytes = 0
        """Most bytes that this rank has kept at once for weight gradients still owed, over all runs."""

    def run(self, microbatches: Sequence[Microbatch], *, first_microbatch: int = 0) -> None:
        """Run the program once over exactly its number of microbatches.

        ``first_microbatch``: the number of the first one within the step, where a step takes several runs. Spans and
        the failure of an action count from it; the board and waits count within the run.

        Raises:
            RankFailed: user code raised; names rank, action and cause.
            NeighborLost: another rank is gone.
            TransferStalled: a message did not arrive within the timeout.
        """
        assert len(microbatches) == self._program.num_microbatches, "one tensor tree for each microbatch"
        self.recorder.first_microbatch = first_microbatch
        walk = self._begin(microbatches)
        for instruction in self._prepared.instructions:
            match instruction:
                case Await():
                    self._await(instruction, walk)
                case Run():
                    self._run(instruction, walk)
                case Hand():
                    self._hand(instruction, walk)
                    self._settle(walk)
        self._settle(walk)
        self._tell("the end", walk, waiting=True)
        try:
            self._transport.drain(self.timeout_s)
        except (TransferTimeout, PeerLost) as error:
            raise self._explained(error, "the end", at="at the end", wanted="its sends to be received") from error
        assert not any(walk.held), "messages without a reader"

    def _begin(self, microbatches: Sequence[Microbatch]) -> _Walk:
        inbound = {n: _Inbound(lane) for n, lane in enumerate(self._program.lanes) if lane.receiver == self._rank}
        held: list[Parcel | None] = [None] * self._prepared.num_slots
        walk = _Walk(microbatches, inbound, held, self.recorder.period, ReceiveBuffers(self._device))
        walk.taken.extend(inbound.values())
        self._settle(walk)
        return walk

    def _await(self, instruction: Await, walk: _Walk) -> None:
        if walk.ran is not None or walk.taken:
            self._settle(walk)
        self._tell(instruction.doing, walk, waiting=True)
        inbound = walk.inbound[instruction.lane]
        arrivals, walk.held[instruction.slot] = inbound.posted.pop(instruction.place)
        mark = self.recorder.mark
        start = mark()
        try:
            for arrival in arrivals:
                arrival.wait(self.timeout_s)
        except (TransferTimeout, PeerLost) as error:
            wanted = f"the {instruction.message} from rank {inbound.lane.sender}"
            raise self._explained(error, instruction.doing, at=f"in {instruction.doing}", wanted=wanted) from error
        self.recorder.waited(instruction.cause, start, mark())
        inbound.num_consumed += 1
        walk.taken.append(inbound)

    def _run(self, instruction: Run, walk: _Walk) -> None:
        if walk.ran is not None:
            self._settle(walk)
        action, engine, needs = instruction.action, instruction.engine, instruction.needs
        walk.last = instruction.doing
        self._tell(instruction.doing, walk, waiting=False)
        self.recorder.begin_action(action)
        given = None
        if needs is not None:
            given, walk.held[needs] = walk.held[needs], None
        mark = self.recorder.mark
        start = mark()
        try:
            made: Parcel | None = None
            match action.kind:
                case Kind.FORWARD:
                    made = engine.forward(action.microbatch, walk.microbatches[action.microbatch], given)
                case Kind.BACKWARD:
                    made = engine.backward(action.microbatch, given)
                case Kind.BACKWARD_INPUT:
                    made = engine.backward_input(action.microbatch, given)
                case Kind.BACKWARD_WEIGHT:
                    engine.backward_weight(action.microbatch)
                case Kind.RECOMPUTE:
                    engine.recompute(action.microbatch)
        except FullboreError:
            raise
        except Exception as error:
            counted = self.recorder.numbered(action)
            raise RankFailed(
                f"rank {self._rank} failed in {counted} ({_describe(counted)}) of {walk.period}: {blame(error)}",
                rank=self._rank,
                action=str(counted),
            ) from error
        walk.ran = (action, start, mark())
        if instruction.makes is not None:
            assert made is not None, f"{action} must hand on what it has made"
            walk.held[instruction.makes] = made

    def _hand(self, instruction: Hand, walk: _Walk) -> None:
        parcel, walk.held[instruction.slot] = walk.held[instruction.slot], None
        assert parcel is not None, f"the {instruction.message} is sent once, and after it is made"
        self._check(parcel, instruction.message, walk)
        try:
            for tensor in parcel:
                self._transport.send(instruction.lane, tensor)
        except (TransferTimeout, PeerLost) as error:
            doing = f"sending the {instruction.message} to rank {instruction.lane.receiver}"
            raise self._explained(error, doing, at=doing, wanted="room in the lane") from error
        walk.num_handed += 1

    def _settle(self, walk: _Walk) -> None:
        """What nobody waits for: the record of the last action, new receives, the form of the next send."""
        if walk.ran is not None:
            self.recorder.compute(*walk.ran)
            walk.ran = None
            live = sum([engine.num_live for engine in self._engines])
            self.peak_activations = max(self.peak_activations, live)
            held = sum([engine.held_bytes for engine in self._engines])
            self.peak_held_bytes = max(self.peak_held_bytes, held)
        for inbound in walk.taken:
            self._top_up(inbound, walk)
        walk.taken.clear()
        if walk.num_handed < len(self._prepared.hands):
            self._specs(self._prepared.hands[walk.num_handed].message, walk)
        try:
            self._transport.release()
        except (TransferTimeout, PeerLost) as error:
            at = "at the start" if walk.last is None else f"in {walk.last}"
            raise self._explained(error, walk.last or "the start", at=at, wanted="its sends to be received") from error

    def _check(self, parcel: Parcel, message: Message, walk: _Walk) -> None:
        """What is sent is what the other end has a buffer for: a shorter message would fill a part of it, silently."""
        specs = self._specs(message, walk)
        made = [(tensor.shape, tensor.dtype) for tensor in parcel]
        if made == [(spec.shape, spec.dtype) for spec in specs]:
            return
        raise RankFailed(
            f"rank {self._rank} made {_describe_tensors(made)} as the {message}, and the other end expects "
            f"{_describe_tensors([(spec.shape, spec.dtype) for spec in specs])}; a layer's output must follow from "
            "its input's shape (under autocast use a bfloat16 model instead)",
            rank=self._rank,
            action=f"sending the {message}",
        )

    def _specs(self, message: Message, walk: _Walk) -> tuple[TensorSpec, ...]:
        payload, microbatch = message.payload, message.microbatch
        place = self._program.placement.place_of(message.stage)
        key = (place if payload is Payload.ACTIVATION else place - 1, microbatch)
        form = walk.forms.get(key)
        if form is None:
            boundary = self._boundary_of(message, walk.microbatches[microbatch])
            form = {Payload.ACTIVATION: boundary.tensors, Payload.GRADIENT: boundary.gradients}
            walk.forms[key] = form
        return form[payload]

    def _top_up(self, inbound: _Inbound, walk: _Walk) -> None:
        """Post receives in the sender's order, as far ahead as the lane's depth allows."""
        lane = inbound.lane
        while inbound.wants:
            message = lane.messages[inbound.num_posted]
            buffers = tuple([walk.buffers.take(spec) for spec in self._specs(message, walk)])
            try:
                arrivals = tuple([self._transport.receive(lane, buffer) for buffer in buffers])
            except (TransferTimeout, PeerLost) as error:
                wanted = f"the {message} from rank {lane.sender}"
                doing = "posting a receive"
                raise self._explained(error, doing, at=doing, wanted=wanted) from error
            inbound.posted[inbound.num_posted] = (arrivals, buffers)
            inbound.num_posted += 1

    def _explained(self, error: TransferTimeout | PeerLost, doing: str, *, at: str, wanted: str) -> RankFailed:
        """A transport's error as one that says where this rank was and what it wanted; ``at`` is ``doing`` as a part of
        the sentence, with its preposition."""
        period = self.recorder.period
        if isinstance(error, TransferTimeout):
            return TransferStalled(
                f"rank {self._rank} waited {self.timeout_s:g} s {at} of {period} for {wanted}",
                rank=self._rank,
                action=doing,
            )
        return NeighborLost(
            f"rank {self._rank}, {at} of {period}, waited for {wanted}, and the other rank is gone "
            f"({first_line(error)})",
            rank=self._rank,
            action=doing,
        )

    def _tell(self, doing: str, walk: _Walk, *, waiting: bool) -> None:
        if self._board is not None:
            self._board.write(self._rank, period=walk.period, doing=doing, waiting=waiting)


def _describe(action: Compute) -> str:
    name = action.kind.name.lower().replace("_", " for the ")
    return f"{name} of stage {action.stage}, microbatch {action.microbatch}"


def _describe_tensors(tensors: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return " and ".join(f"{list(shape)} {dtype}" for shape, dtype in tensors) or "nothing"


def _list(kinds: frozenset[Kind]) -> str:
    return ", ".join(sorted(kinds))
