"""StepRecorder: collects the marks of one step and turns them into spans when the step is over.

Nothing is formatted or allocated beyond one tuple an event while the step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fullbore.ids import MicrobatchIndex, Rank
from fullbore.ir.action import Compute, Kind
from fullbore.runtime.device import Device, Mark
from fullbore.runtime.processes.board import ProgressBoard, step_name
from fullbore.timeline.instrument import Instrument
from fullbore.timeline.span import Activity, Row, Span

__all__ = ["StepRecorder"]

_PHASES = {
    Activity.DATA: "drawing the batch",
    Activity.TIED_GRADIENTS: "the sum of tied gradients",
    Activity.LOSS_REDUCE: "the reduction of the loss",
    Activity.GRADIENT_NORM: "the gradient norm",
    Activity.OPTIMIZER: "the optimizer",
}
"""What the board says of work outside actions."""


class StepRecorder:
    """Between the executor, which takes marks, and an `Instrument`, which wants spans.

    ``board``: told of every phase outside actions. ``name``: from `step` to the words for it, such as "step 3".
    """

    def __init__(
        self,
        device: Device,
        instrument: Instrument,
        *,
        rank: int,
        board: ProgressBoard | None = None,
        name: Callable[[int], str] = step_name,
    ) -> None:
        self._device = device
        self._instrument = instrument
        self._rank = Rank(rank)
        self._board = board
        self._name = name
        self._events: list[tuple[Row, Compute | None, Activity | None, Mark, Mark]] = []
        self._current: Compute | None = None
        self.first_microbatch = 0
        """Added to the microbatch of every action: several runs may make up one step."""
        self.step = 1
        """The optimizer step under way, counted from 1 as in `metrics.jsonl`."""

    @property
    def period(self) -> str:
        """The step or evaluation under way, in words."""
        return self._name(self.step)

    def tell(self, doing: str) -> None:
        """Say on the board what this rank does outside actions. What follows a step's actions belongs to it."""
        if self._board is not None:
            self._board.write(self._rank, period=self.period, doing=doing, waiting=False)

    def mark(self) -> Mark:
        return self._device.mark()

    def compute(self, action: Compute, start: Mark, end: Mark) -> None:
        self._events.append((Row.COMPUTE, self.numbered(action), None, start, end))

    def waited(self, action: Compute, start: Mark, end: Mark) -> None:
        """``action`` could not start before a message had arrived."""
        self._events.append((Row.WAIT, self.numbered(action), Activity.RECV_WAIT, start, end))

    def numbered(self, action: Compute) -> Compute:
        """The action with its microbatch counted from the start of the step."""
        if not self.first_microbatch:
            return action
        return Compute(action.stage, action.kind, MicrobatchIndex(self.first_microbatch + action.microbatch))

    def begin_action(self, action: Compute) -> None:
        """Nested work from here on belongs to this action."""
        self._current = action

    @contextmanager
    def nested(self, kind: Kind) -> Iterator[None]:
        """Time work inside the current action, as a span of its own; an action of this very kind is one already."""
        assert self._current is not None, "nested work outside an action"
        if self._current.kind is kind:
            yield
            return
        action = Compute(self._current.stage, kind, self._current.microbatch)
        start = self._device.mark()
        try:
            yield
        finally:
            self._events.append((Row.NESTED, self.numbered(action), None, start, self._device.mark()))

    @contextmanager
    def flush(self, activity: Activity) -> Iterator[None]:
        """Time work between the last action of a step and the first of the next."""
        self.tell(_PHASES.get(activity, activity.value))
        start = self._device.mark()
        try:
            yield
        finally:
            self._events.append((Row.FLUSH, None, activity, start, self._device.mark()))

    def discard(self) -> None:
        """Forget what was recorded since the last step: it was no training step."""
        self._events.clear()

    def end_step(self) -> None:
        """Hand the step's spans over. Waits for the device, once.

        Without a compute action there is no step to end: what was timed (reading the first batch) belongs to the
        one that follows.
        """
        if not any(row is Row.COMPUTE for row, *_ in self._events):
            return
        times = self._device.resolve_ns([mark for event in self._events for mark in event[3:]])
        for index, (row, action, activity, _, _) in enumerate(self._events):
            start, end = times[2 * index], times[2 * index + 1]
            self._instrument.record(Span(self._rank, row, action, activity, start, end))
        self._events.clear()
        self._instrument.step_ended(self.step)
        self.step += 1
