"""Replays: what an order takes when no action takes exactly what it was planned to take.

An order that is the best for exact times can wait at every step for an action that is a little late. So orders are
judged on many draws: each action's time varies by itself, with a standard deviation of a twentieth. The draws belong
to the action (stage, kind, microbatch), not to its place in the order, so that all orders of the same work are judged
on the same draws. Everything is in integers and the seed is fixed: every machine finds the same order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fullbore.schedules.costs import ScheduleCosts
from fullbore.simulate.compiled import CompiledSchedule, refuse_too_long
from fullbore.simulate.sweep import end_times, replayed_makespans
from fullbore.simulate.wiring import KINDS, Ints

__all__ = ["SPREAD", "Replays", "exact_makespan", "require_replayable"]

SPREAD = 0.05
_BITS = 12


class Replays:
    """The draws for one number of stages and microbatches."""

    def __init__(
        self, *, num_stages: int, num_microbatches: int, count: int, seed: int, spread: float = SPREAD
    ) -> None:
        """A factor is 1 plus the sum of three uniform draws, nearly normal and never further than three deviations."""
        most = round(spread * (1 << _BITS))
        shape = (3, len(KINDS), num_stages, num_microbatches, count)
        draws = np.random.default_rng(seed).integers(-most, most + 1, shape, np.int64)
        self._factor: Ints = draws.sum(axis=0) + (1 << _BITS)

    def makespans(self, compiled: CompiledSchedule, *, costs: ScheduleCosts) -> NDArray[np.float64]:
        """[replay] what the order takes in each, in the unit of the costs.

        Raises:
            CostsError: times that 64-bit integers do not hold.
        """
        factor = self._factor[compiled.kind, compiled.stage, compiled.unit]
        exact, delays = compiled.durations(costs.stages), _delays(compiled, costs)
        require_replayable(int(exact.sum()) + int(delays.sum()))
        ends = replayed_makespans(compiled, durations=exact[:, None] * factor, delays=delays << _BITS)
        return ends / (1 << _BITS)


def require_replayable(ticks: int) -> None:
    """Raises `CostsError` where 64-bit integers do not hold a replay of actions and messages of so much time in all."""
    refuse_too_long(ticks << (_BITS + 1))


def exact_makespan(compiled: CompiledSchedule, *, costs: ScheduleCosts) -> int:
    """What the order takes when every action takes what it was planned to take."""
    ends = end_times(compiled, durations=compiled.durations(costs.stages), delays=_delays(compiled, costs))
    return int(ends.max(initial=0))


def _delays(compiled: CompiledSchedule, costs: ScheduleCosts) -> Ints:
    return np.array([*costs.delays, 0], np.int64)[compiled.boundary_row]
