"""Spans from marks: the right row and action, and steps that end where they should."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fullbore.ir.action import Compute, Kind
from fullbore.runtime.device import Mark
from fullbore.runtime.recorder import StepRecorder
from fullbore.timeline.span import Activity, Row, Span


class Ticking:
    """A device whose clock advances by one a mark, and whose marks mean tens of nanoseconds."""

    torch_device = torch.device("cpu")
    backend = "gloo"

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> Mark:
        self.now += 1
        return self.now

    def resolve_ns(self, marks: Sequence[Mark]) -> list[int]:
        return [int(mark) * 10 for mark in marks]


class Steps:
    def __init__(self) -> None:
        self.open: list[Span] = []
        self.steps: dict[int, list[Span]] = {}

    def record(self, span: Span) -> None:
        self.open.append(span)

    def step_ended(self, step: int) -> None:
        self.steps[step], self.open = self.open, []


def test_one_step_of_every_kind_of_span() -> None:
    steps = Steps()
    recorder = StepRecorder(Ticking(), steps, rank=2)
    action = Compute.parse("2B1")
    with recorder.flush(Activity.DATA):
        pass
    recorder.end_step()
    assert steps.steps == {}, "data read before the first action belongs to the step that follows"
    start = recorder.mark()
    recorder.waited(action, start, recorder.mark())
    recorder.begin_action(action)
    start = recorder.mark()
    with recorder.nested(Kind.RECOMPUTE):
        pass
    recorder.compute(action, start, recorder.mark())
    recorder.end_step()
    assert [(s.row, s.label, s.start_ns, s.end_ns) for s in steps.steps[1]] == [
        (Row.FLUSH, "data", 10, 20),
        (Row.WAIT, "2B1", 30, 40),
        (Row.NESTED, "2R1", 60, 70),
        (Row.COMPUTE, "2B1", 50, 80),
    ]
    assert {span.rank for span in steps.steps[1]} == {2}


def test_recomputation_in_an_action_for_it_is_no_span_within() -> None:
    steps = Steps()
    recorder = StepRecorder(Ticking(), steps, rank=0)
    action = Compute.parse("2R1")
    recorder.begin_action(action)
    start = recorder.mark()
    with recorder.nested(Kind.RECOMPUTE):
        pass
    recorder.compute(action, start, recorder.mark())
    recorder.end_step()
    assert [(s.row, s.label) for s in steps.steps[1]] == [(Row.COMPUTE, "2R1")]


def test_a_second_step_has_the_next_number() -> None:
    steps = Steps()
    recorder = StepRecorder(Ticking(), steps, rank=0)
    for _ in range(2):
        recorder.compute(Compute.parse("0F0"), recorder.mark(), recorder.mark())
        recorder.end_step()
        recorder.end_step()
    assert list(steps.steps) == [1, 2]
