"""Replay: what a measured step would have taken with the same durations and other (or no) communication.

Every action keeps its measured duration and every rank its measured order; only the waiting is worked out anew. So a
replay that reproduces the measured makespan shows that the dependencies explain it, and one that does not shows how
much of it they leave unexplained. The method is that of the what-if analysis in Jinkun Lin and others, Understanding
Stragglers in Large Model Training Using What-if Analysis, arXiv 2505.05713, section 3: their published traces replay to
within 0.3 % of the measured forward and backward span.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fullbore.costs.links import Link
from fullbore.ids import MicrobatchIndex, Rank
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.simulate.columnar import columnar_of
from fullbore.simulate.compiled import compile_schedule, refuse_too_long
from fullbore.timeline.span import Row, Timeline

__all__ = ["measured_schedule", "replay"]


def replay(
    measured: Timeline,
    *,
    placement: Placement,
    links: Sequence[Link] = (),
    message_bytes: Sequence[int] | int = 0,
) -> Timeline:
    """The step again, from time 0. ``links`` and ``message_bytes`` as in `fullbore.simulate.engine.simulate`.

    Linear in the number of actions, after sorting.

    Raises:
        InvalidSchedule: the measured order cannot run: an action is missing, or there twice (several passes in one
            step are to be replayed one by one).
        CostsError: not one link or size a boundary.
    """
    compiled = compile_schedule(measured_schedule(measured, placement=placement))
    durations = [
        span.duration_ns
        for rank in range(placement.num_ranks)
        for span in measured.on(rank, Row.COMPUTE)
        if span.action is not None
    ]
    refuse_too_long(sum(durations))
    delays = compiled.delays(links=links, message_bytes=message_bytes)
    return columnar_of(compiled, durations=np.array(durations, np.int64), delays=delays).to_timeline()


def measured_schedule(measured: Timeline, *, placement: Placement, name: str = "measured") -> Schedule:
    """The order in which each rank really computed."""
    orders = tuple(
        tuple(span.action for span in measured.on(rank, Row.COMPUTE) if span.action is not None)
        for rank in map(Rank, range(placement.num_ranks))
    )
    last = max((action.microbatch for order in orders for action in order), default=MicrobatchIndex(-1))
    return Schedule(name, placement, last + 1, orders)
