"""The executor against a transport that only writes down what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fullbore.errors import NeighborLost, RankFailed, ScheduleError, TransferStalled
from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.ir.program import Lane
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Boundary, Microbatch, Parcel, TensorSpec
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.executor import Executor
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.transport import Arrival, PeerLost, TransferTimeout
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import REGISTRY
from fullbore.timeline.instrument import SpanList
from fullbore.timeline.span import Row


class Written:
    """Every message arrives at once; ``log`` keeps the order of what the executor asked for."""

    def __init__(self, log: list[str], *, failure: Exception | None = None, fails_after: tuple[str, ...] = ()) -> None:
        """``fails_after``: the log with which ``failure`` is raised; without, at the first wait."""
        self.log = log
        self.failure = failure
        self.fails_after = list(fails_after)

    def send(self, lane: Lane, tensor: Tensor) -> None:
        self._did("send")

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        self._did("post")
        return self

    def wait(self, timeout_s: float) -> None:
        self._did("wait")

    def release(self) -> None:
        if self.fails_after == [*self.log, "release"]:
            self._did("release")

    def drain(self, timeout_s: float) -> None:
        self._did("drain")

    def close(self) -> None: ...

    def _did(self, what: str) -> None:
        self.log.append(what)
        if self.failure is not None and (self.log == self.fails_after if self.fails_after else what == "wait"):
            raise self.failure


class Engine:
    """Hands on a one and writes down what it did."""

    kinds = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.RECOMPUTE})
    num_live = 0
    held_bytes = 0

    def __init__(self, log: list[str], *, failure: Exception | None = None) -> None:
        self.log = log
        self.failure = failure

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        self.log.append(f"F{index}")
        if self.failure is not None:
            raise self.failure
        return (torch.ones(1),)

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        self.log.append(f"B{index}")
        return (torch.ones(1),)

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        self.log.append(f"I{index}")
        return (torch.ones(1),)

    def backward_weight(self, index: MicrobatchIndex) -> None:
        self.log.append(f"W{index}")

    def recompute(self, index: MicrobatchIndex) -> None:
        self.log.append(f"R{index}")


def executor(
    schedule: Schedule,
    rank: int,
    *,
    prefetch: int = 2,
    wait_failure: Exception | None = None,
    fails_after: tuple[str, ...] = (),
    engine_failure: Exception | None = None,
) -> tuple[Executor, list[str], SpanList]:
    log: list[str] = []
    spans = SpanList()
    engines: Mapping[StageIndex, Engine] = {
        stage: Engine(log, failure=engine_failure) for stage in schedule.placement.stages_of(Rank(rank))
    }
    made = Executor(
        lower(schedule, prefetch=prefetch),
        rank=rank,
        engines=engines,
        transport=Written(log, failure=wait_failure, fails_after=fails_after),
        boundary_of=lambda message, microbatch: Boundary((TensorSpec((1,), torch.float32, gradient=True),)),
        device=torch.device("cpu"),
        recorder=StepRecorder(CpuDevice(), spans, rank=rank),
        board=None,
        timeout_s=1.5,
    )
    return made, log, spans


def test_receives_are_posted_ahead_to_the_lanes_depth_and_sends_are_not_waited_for() -> None:
    made, log, _ = executor(REGISTRY["1f1b"].build(3, num_microbatches=3), 1)
    made.run([{}] * 3)
    assert log == [
        *("post", "post", "post", "post"),  # two activations, two gradients: the depth of each lane
        *("wait", "F0", "send", "post"),  # the third activation's buffer once one is used and nobody waits for us
        *("wait", "F1", "send"),
        *("wait", "B0", "send", "post"),
        *("wait", "F2", "send"),
        *("wait", "B1", "send", "wait", "B2", "send"),
        "drain",
    ]


def test_no_more_buffers_are_posted_than_the_depth_allows() -> None:
    made, log, _ = executor(REGISTRY["gpipe"].build(2, num_microbatches=8), 1, prefetch=1)
    made.run([{}] * 8)
    posted = 0
    for entry in log:
        posted += {"post": 1, "wait": -1}.get(entry, 0)
        assert posted <= 1


def test_waits_and_computes_are_spans_of_the_action_they_serve() -> None:
    made, _, spans = executor(REGISTRY["1f1b"].build(2, num_microbatches=1), 0)
    made.run([{}])
    made.recorder.end_step()
    assert [(span.row, str(span.action)) for span in spans.last] == [
        (Row.COMPUTE, "0F0"),
        (Row.WAIT, "0B0"),
        (Row.COMPUTE, "0B0"),
    ]


def test_a_recomputation_is_an_action_and_is_done_before_the_gradient_is_waited_for() -> None:
    made, log, spans = executor(recompute_ahead(REGISTRY["1f1b"].build(2, num_microbatches=1)), 0)
    made.run([{}])
    made.recorder.end_step()
    assert log == ["post", "F0", "send", "R0", "wait", "B0", "drain"]
    assert [(span.row, str(span.action)) for span in spans.last] == [
        (Row.COMPUTE, "0F0"),
        (Row.COMPUTE, "0R0"),
        (Row.WAIT, "0B0"),
        (Row.COMPUTE, "0B0"),
    ]


def test_user_code_that_raises_is_named() -> None:
    made, _, _ = executor(REGISTRY["1f1b"].build(2, num_microbatches=1), 0, engine_failure=KeyError("mask"))
    with pytest.raises(RankFailed, match=r"rank 0 failed in 0F0 \(forward of stage 0, microbatch 0\) of step 1: KeyE"):
        made.run([{}])


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (TransferTimeout("x"), TransferStalled, "rank 0 waited 1.5 s in 0B0 of step 1 for the gradient of stage 1, mi"),
        (PeerLost("reset"), NeighborLost, r"rank 0, in 0B0 of step 1, waited for the gradient .* is gone \(reset\)"),
    ],
)
def test_a_message_that_does_not_come_is_named(failure: Exception, kind: type[RankFailed], text: str) -> None:
    made, _, _ = executor(REGISTRY["1f1b"].build(2, num_microbatches=1), 0, wait_failure=failure)
    with pytest.raises(kind, match=text) as raised:
        made.run([{}])
    assert (raised.value.rank, raised.value.action) == (0, "0B0")


@pytest.mark.parametrize(
    ("fails_after", "action", "text"),
    [
        (("post",), "posting a receive", "posting a receive of step 1 for the gradient of stage 1, microbatch 0 from"),
        (("post", "release"), "the start", "at the start of step 1 for its sends to be received"),
        (("post", "F0", "send", "release"), "0F0", "in 0F0 of step 1 for its sends to be received"),
        (
            ("post", "F0", "send"),
            "sending the activation of stage 0, microbatch 0 to rank 1",
            "sending the activation of stage 0, microbatch 0 to rank 1 of step 1 for room in the lane",
        ),
        (
            ("post", "F0", "send", "wait", "B0", "drain"),
            "the end",
            "at the end of step 1 for its sends to be received",
        ),
    ],
)
def test_where_a_rank_waited_in_vain_is_said(fails_after: tuple[str, ...], action: str, text: str) -> None:
    schedule = REGISTRY["1f1b"].build(2, num_microbatches=1)
    made, _, _ = executor(schedule, 0, wait_failure=TransferTimeout("x"), fails_after=fails_after)
    with pytest.raises(TransferStalled, match=f"^rank 0 waited 1.5 s {text}") as raised:
        made.run([{}])
    assert raised.value.action == action


def test_a_schedule_with_actions_the_engine_does_not_run_is_refused_before_the_run() -> None:
    order = tuple(Compute.parse(text) for text in ("0F0", "0I0", "0W0"))
    split = Schedule("split", Placement.linear(1), 1, (order,))
    with pytest.raises(ScheduleError, match=r"the engine of stage 0 runs B, F, R; the schedule asks rank 0 for 0I0"):
        executor(split, 0)
