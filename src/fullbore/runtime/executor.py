"""Executor: walks one rank's program. It runs any valid schedule and knows the name of none.

Three rules keep it fast and free of deadlock:

- receives are posted ahead in the sender's order, to the depth that lowering computed for the lane, so a
  message never waits for its buffer and buffers stay bounded;
- a send is started and never waited for before the end of the step;
- everything is let go of at its last use.

A failure is reported with what the rank was doing: which action, of which step, waiting for which message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

from fullbore.errors import FullboreError, NeighborLost, RankFailed, ScheduleError, TransferStalled
from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Compute, Kind, Message, Payload, Recv, Send
from fullbore.ir.flow import made_by, needed_by
from fullbore.ir.program import Lane, Program
from fullbore.ir.program_spec import check_program
from fullbore.models.layered import Boundary, Microbatch, Parcel, TensorSpec
from fullbore.runtime.blame import blame, first_line
from fullbore.runtime.board import ProgressBoard
from fullbore.runtime.engine import StageEngine
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport import Arrival, PeerLost, TransferTimeout, Transport

__all__ = ["BoundaryOf", "Executor"]

BoundaryOf = Callable[[Message, Microbatch], Boundary]
"""What crosses at the boundary a message is about, for this microbatch; the same on both ends."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Inbound:
    """The receiving end of a lane during one walk."""

    lane: Lane
    num_posted: int = 0
    num_consumed: int = 0
    posted: dict[Message, tuple[tuple[Arrival, ...], Parcel]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Walk:
    """The state of one walk through the program."""

    microbatches: Sequence[Microbatch]
    inbound: Mapping[int, _Inbound]
    """By lane number."""

    held: dict[Message, Parcel]
    """Arrived or produced, and not yet used."""


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
        self._program = program
        self._instructions = program.instructions[rank]
        self._rank = Rank(rank)
        self._engines = engines
        self._transport = transport
        self._boundary_of = boundary_of
        self._device = device
        self.recorder = recorder
        self._board = board
        self._timeout_s = timeout_s
        self._causes = _next_computes(program, rank)
        self.peak_activations = 0
        """Most stage-microbatches whose activations this rank has held at once, over all runs."""
        for instruction in self._instructions:
            if isinstance(instruction, Compute) and instruction.kind not in engines[instruction.stage].kinds:
                raise ScheduleError(
                    f"the engine of stage {instruction.stage} runs {_list(engines[instruction.stage].kinds)}; "
                    f"the schedule asks rank {rank} for {instruction}; choose a schedule without {instruction.kind}"
                )

    def run(self, microbatches: Sequence[Microbatch], *, first_microbatch: int = 0) -> None:
        """Run the program once over exactly its number of microbatches.

        ``first_microbatch``: the number of the first one within the step, where a step takes several runs; spans and
        messages count from it.

        Raises:
            RankFailed: user code raised; names rank, action and cause.
            NeighborLost: another rank is gone.
            TransferStalled: a message did not arrive within the timeout.
        """
        assert len(microbatches) == self._program.num_microbatches, "one tensor tree for each microbatch"
        walk = self._begin(microbatches)
        self.recorder.first_microbatch = first_microbatch
        for instruction, cause in zip(self._instructions, self._causes, strict=True):
            match instruction:
                case Recv():
                    self._receive(instruction, cause, walk)
                case Compute():
                    self._compute(instruction, walk)
                case Send():
                    self._send(instruction, walk)
        self._guard(lambda: self._transport.drain(self._timeout_s), "the end of the step", "its sends to be received")
        assert not walk.held, f"messages without a reader: {list(walk.held)}"

    def _begin(self, microbatches: Sequence[Microbatch]) -> _Walk:
        inbound = {n: _Inbound(lane) for n, lane in enumerate(self._program.lanes) if lane.receiver == self._rank}
        walk = _Walk(microbatches, inbound, {})
        for end in inbound.values():
            self._top_up(end, walk)
        return walk

    def _receive(self, instruction: Recv, cause: Compute, walk: _Walk) -> None:
        inbound, message = walk.inbound[instruction.lane], instruction.message
        self._tell(str(cause), waiting=True)
        arrivals, buffers = inbound.posted.pop(message)
        start = self.recorder.mark()
        for arrival in arrivals:
            wait = partial(arrival.wait, self._timeout_s)
            self._guard(wait, str(cause), f"the {message} from rank {inbound.lane.sender}")
        self.recorder.waited(cause, start, self.recorder.mark())
        walk.held[message] = buffers
        inbound.num_consumed += 1
        self._top_up(inbound, walk)

    def _compute(self, action: Compute, walk: _Walk) -> None:
        self._guard(self._transport.release, str(action), "its sends to be received")
        self._tell(str(action), waiting=False)
        self.recorder.begin_action(action)
        start = self.recorder.mark()
        try:
            made = self._call_engine(action, walk)
        except FullboreError:
            raise
        except Exception as error:
            raise RankFailed(
                f"rank {self._rank} failed in {action} ({_describe(action)}) of step {self.recorder.step}: "
                f"{blame(error)}",
                rank=self._rank,
                action=str(action),
            ) from error
        self.recorder.compute(action, start, self.recorder.mark())
        live = sum(engine.num_live for engine in self._engines.values())
        self.peak_activations = max(self.peak_activations, live)
        message = made_by(action, self._program.placement)
        if message is not None:
            assert made is not None, f"{action} must hand on the {message}"
            walk.held[message] = made

    def _send(self, instruction: Send, walk: _Walk) -> None:
        lane, message = self._program.lanes[instruction.lane], instruction.message
        parcel = walk.held.pop(message)
        self._check(parcel, message, walk)
        doing = f"sending the {message} to rank {lane.receiver}"
        for tensor in parcel:
            self._guard(partial(self._transport.send, lane, tensor), doing, "the lane")

    def _check(self, parcel: Parcel, message: Message, walk: _Walk) -> None:
        """What is sent is what the other end has a buffer for: a shorter message would fill a part of it, silently."""
        specs = self._specs(message, walk)
        made = [(tuple(tensor.shape), tensor.dtype) for tensor in parcel]
        if made != [(spec.shape, spec.dtype) for spec in specs]:
            raise RankFailed(
                f"rank {self._rank} made {_describe_tensors(made)} as the {message}, and the other end expects "
                f"{_describe_tensors([(spec.shape, spec.dtype) for spec in specs])}; a layer's output must follow from "
                "its input's shape (under autocast use a bfloat16 model instead)",
                rank=self._rank,
                action=f"sending the {message}",
            )

    def _specs(self, message: Message, walk: _Walk) -> tuple[TensorSpec, ...]:
        boundary = self._boundary_of(message, walk.microbatches[message.microbatch])
        return boundary.tensors if message.payload is Payload.ACTIVATION else boundary.gradients

    def _call_engine(self, action: Compute, walk: _Walk) -> Parcel | None:
        engine, index = self._engines[action.stage], action.microbatch
        needed = needed_by(action, self._program.placement)
        given = None if needed is None else walk.held.pop(needed)
        match action.kind:
            case Kind.FORWARD:
                return engine.forward(index, walk.microbatches[index], given)
            case Kind.BACKWARD:
                return engine.backward(index, given)
            case Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT | Kind.RECOMPUTE:
                raise AssertionError(f"no engine runs {action.kind}; the constructor refuses such schedules")

    def _top_up(self, inbound: _Inbound, walk: _Walk) -> None:
        """Post receives in the sender's order, as far ahead as the lane's depth allows."""
        lane = inbound.lane
        while inbound.num_posted < min(len(lane.messages), inbound.num_consumed + lane.depth):
            message = lane.messages[inbound.num_posted]
            buffers = tuple(
                torch.empty(spec.shape, dtype=spec.dtype, device=self._device) for spec in self._specs(message, walk)
            )
            arrivals = tuple(
                self._guard(
                    partial(self._transport.receive, lane, buffer),
                    "posting a receive",
                    f"the {message} from rank {lane.sender}",
                )
                for buffer in buffers
            )
            inbound.posted[message] = (arrivals, buffers)
            inbound.num_posted += 1

    def _guard(self, call: Callable[[], _T], doing: str, wanted: str) -> _T:
        """Turn a transport error into one that says where this rank was and what it wanted."""
        try:
            return call()
        except TransferTimeout as error:
            raise TransferStalled(
                f"rank {self._rank} waited {self._timeout_s:g} s in {doing} of step {self.recorder.step} for {wanted}",
                rank=self._rank,
                action=doing,
            ) from error
        except PeerLost as error:
            raise NeighborLost(
                f"rank {self._rank}, in {doing} of step {self.recorder.step}, waited for {wanted} "
                f"from a rank that is gone ({first_line(error)})",
                rank=self._rank,
                action=doing,
            ) from error

    def _tell(self, doing: str, *, waiting: bool) -> None:
        if self._board is not None:
            self._board.write(self._rank, step=self.recorder.step, doing=doing, waiting=waiting)


def _next_computes(program: Program, rank: int) -> tuple[Compute, ...]:
    """For every instruction the compute action it serves: the next one, or for a trailing send the last one."""
    causes: list[Compute] = []
    following: Compute | None = None
    instructions = program.instructions[rank]
    for instruction in reversed(instructions):
        if isinstance(instruction, Compute):
            following = instruction
        causes.append(following if following is not None else _last_compute(instructions))
    return tuple(reversed(causes))


def _last_compute(instructions: Sequence[object]) -> Compute:
    return next(i for i in reversed(instructions) if isinstance(i, Compute))


def _describe(action: Compute) -> str:
    names = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward"}
    return f"{names.get(action.kind, action.kind.name.lower())} of stage {action.stage}, microbatch {action.microbatch}"


def _describe_tensors(tensors: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return " and ".join(f"{list(shape)} {dtype}" for shape, dtype in tensors) or "nothing"


def _list(kinds: frozenset[Kind]) -> str:
    return ", ".join(sorted(kinds))
