"""The timeline of a compiled schedule as columns: start and end of every action, without an object for each.

A `Timeline` of 65,536 actions is 65,536 and more spans to make and to sort; its columns are two arrays. Accounting
needs no more than the columns, and `ColumnarTimeline.to_timeline` gives the very `Timeline` that
`fullbore.simulate.engine.simulate` returns, waits included, where spans are wanted (drawing, export).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.simulate.compiled import CompiledSchedule
from fullbore.simulate.sweep import end_times
from fullbore.simulate.wiring import Ints
from fullbore.timeline.bubble import Bubble
from fullbore.timeline.span import Activity, Row, Span, Timeline

__all__ = ["ColumnarTimeline", "columnar", "columnar_of"]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnarTimeline:
    """Columns indexed by node, as in `CompiledSchedule`: rank by rank, each in its order."""

    compiled: CompiledSchedule
    start_ns: Ints
    end_ns: Ints

    @property
    def makespan_ns(self) -> int:
        """First start to last end; 0 without any action."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self.end_ns) else 0

    def bubble(self) -> Bubble:
        """What `fullbore.timeline.bubble.bubble_of` says of the same timeline."""
        ranks = [slice(first, end) for first, end in pairwise(self.compiled.edges)]
        durations = self.end_ns - self.start_ns
        busy = tuple(int(durations[rank].sum()) for rank in ranks)
        spans = tuple(
            int(self.end_ns[rank.stop - 1] - self.start_ns[rank.start]) if rank.stop > rank.start else 0
            for rank in ranks
        )
        return Bubble(self.makespan_ns, busy, spans)

    def to_timeline(self) -> Timeline:
        """The same as spans: nothing is lost, and a WAIT span stands where a rank idles between two actions."""
        return Timeline.of(self._spans(), num_ranks=self.compiled.schedule.num_ranks)

    def _spans(self) -> Iterator[Span]:
        starts, ends = self.start_ns.tolist(), self.end_ns.tolist()
        for rank, order in enumerate(self.compiled.schedule.orders):
            node = self.compiled.edges[rank]
            idle_since = None
            for action in order:
                start, end = starts[node], ends[node]
                if idle_since is not None and start > idle_since:
                    yield Span(Rank(rank), Row.WAIT, action, Activity.RECV_WAIT, idle_since, start)
                yield Span(Rank(rank), Row.COMPUTE, action, None, start, end)
                idle_since, node = end, node + 1


def columnar(
    compiled: CompiledSchedule,
    *,
    costs: Sequence[StageCost],
    links: Sequence[Link] = (),
    message_bytes: Sequence[int] | int = 0,
) -> ColumnarTimeline:
    """When every action starts and ends. Arguments and errors as of `fullbore.simulate.engine.simulate`."""
    return columnar_of(
        compiled,
        durations=compiled.durations(costs),
        delays=compiled.delays(links=links, message_bytes=message_bytes),
    )


def columnar_of(compiled: CompiledSchedule, *, durations: Ints, delays: Ints | None = None) -> ColumnarTimeline:
    """The same where every action has its own duration, and every message its own delay (None: all free)."""
    free = np.zeros(compiled.num_actions, np.int64) if delays is None else delays
    ends = end_times(compiled, durations=durations, delays=free)
    return ColumnarTimeline(compiled, ends - durations, ends)
