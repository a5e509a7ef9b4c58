"""Recomputation as an action of its own, R, that runs before the gradient is there: a pass over any schedule.

A layer that recomputes keeps only its input from a forward to its backward and runs the forward again in between. Done
inside the backward, that starts when the gradient arrives. But it needs nothing from another rank: as an action right
before the B or I it is done while the rank would otherwise wait for the gradient. One R is for all layers of a stage
that recompute. At most one microbatch is recomputed and not yet used on a rank (two actions that may run at once stay
together, so there it is done before the forward). p = 2, m = 2, 1F1B, F = 1, B = 1, r marks R, a prime a backward:

    inside the backward   0  1  .  .  0' 0' .  1' 1'      ahead of it   0  1  0r .  0' 1r .  1'
                          .  0  0' 0' 1  1' 1' .  .                     .  0  0r 0' 1  1r 1' .
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fullbore.errors import ScheduleError
from fullbore.ids import StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.schedule import Schedule

__all__ = ["recompute_ahead", "recompute_everywhere", "without_recomputations"]


def recompute_ahead(schedule: Schedule, *, stages: Collection[StageIndex] | None = None) -> Schedule:
    """The schedule with an R before each B or I of these stages (None: all). Costs of backwards no longer have it in.

    Raises:
        ScheduleError: the schedule has recomputations already.
    """
    if schedule.recomputes:
        raise ScheduleError(f"schedule {schedule.name!r} recomputes already; give it without its Rs")
    chosen = set(map(StageIndex, range(schedule.num_stages))) if stages is None else set(stages)
    joined = {pair.forward: pair.backward for pair in schedule.overlaps}
    behind = set(joined.values())
    orders = []
    for order in schedule.orders:
        actions: list[Compute] = []
        for action in order:
            user = joined.get(action, action)
            if user.kind.makes_input_gradient and user.stage in chosen and action not in behind:
                actions.append(user.of_kind(Kind.RECOMPUTE))
            actions.append(action)
        orders.append(tuple(actions))
    return replace(schedule, orders=tuple(orders))


def recompute_everywhere(schedule: Schedule) -> Schedule:
    """The schedule with an R in every stage, whichever have one now: for cuts that put the layers elsewhere."""
    return recompute_ahead(without_recomputations(schedule))


def without_recomputations(schedule: Schedule) -> Schedule:
    """The schedule without its Rs."""
    orders = tuple(tuple(a for a in order if a.kind is not Kind.RECOMPUTE) for order in schedule.orders)
    return replace(schedule, orders=orders)
