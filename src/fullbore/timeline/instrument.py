"""The seam through which the runtime tells what it does. Tracing supplies one; neither imports the other."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fullbore.timeline.span import Span

__all__ = ["Fanout", "Instrument", "SpanList"]


@runtime_checkable
class Instrument(Protocol):
    """Receives every span of a rank, in host order, after its times are known (on a device: after the step)."""

    def record(self, span: Span) -> None:
        """Take one span. Must be cheap and must not raise."""

    def step_ended(self, step: int) -> None:
        """All spans since the last call belong to this optimizer step, counted from 1."""


class SpanList:
    """Keeps the spans of the last step in memory."""

    def __init__(self) -> None:
        self._open: list[Span] = []
        self.last: tuple[Span, ...] = ()

    def record(self, span: Span) -> None:
        self._open.append(span)

    def step_ended(self, step: int) -> None:
        del step
        self.last = tuple(self._open)
        self._open.clear()


class Fanout:
    """Tells several instruments."""

    def __init__(self, instruments: tuple[Instrument, ...]) -> None:
        self._instruments = instruments

    def record(self, span: Span) -> None:
        for instrument in self._instruments:
            instrument.record(span)

    def step_ended(self, step: int) -> None:
        for instrument in self._instruments:
            instrument.step_ended(step)
