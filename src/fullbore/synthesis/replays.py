"""Replays: what an order takes when no action takes exactly what it was planned to take.

An order that is the best for exact times can wait at every step for an action that is a little late. So orders are
judged on many draws: each action's time varies by itself, by a twentieth (the standard deviation of a log-normal
factor). The draws belong to the action (stage, kind, microbatch), not to its place in the order, so that all orders of
the same work are judged on the same draws; the seed is fixed, so the same input gives the same answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fullbore.schedules.costs import ScheduleCosts
from fullbore.simulate.compiled import CompiledSchedule, Ints
from fullbore.simulate.sweep import end_times, replayed_makespans
from fullbore.simulate.wiring import KINDS

__all__ = ["SPREAD", "Replays"]

SPREAD = 0.05


class Replays:
    """The draws for one number of stages and microbatches."""

    def __init__(
        self, *, num_stages: int, num_microbatches: int, count: int, seed: int, spread: float = SPREAD
    ) -> None:
        draws = np.random.default_rng(seed)
        self._factor: NDArray[np.float32] = np.exp(
            spread * draws.standard_normal((len(KINDS), num_stages, num_microbatches, count), np.float32)
        )

    def makespans(self, compiled: CompiledSchedule, *, costs: ScheduleCosts) -> Ints:
        """[replay] what the order takes in each. In the unit of the costs."""
        factor = self._factor[compiled.kind, compiled.stage, compiled.unit]
        exact = compiled.durations(costs.stages)
        jittered = np.rint(exact[:, None] * factor).astype(np.int64)
        return replayed_makespans(compiled, durations=jittered, delays=_delays(compiled, costs))


def exact_makespan(compiled: CompiledSchedule, *, costs: ScheduleCosts) -> int:
    """What the order takes when every action takes what it was planned to take."""
    ends = end_times(compiled, durations=compiled.durations(costs.stages), delays=_delays(compiled, costs))
    return int(ends.max(initial=0))


def _delays(compiled: CompiledSchedule, costs: ScheduleCosts) -> Ints:
    return np.array([*costs.delays, 0], np.int64)[compiled.boundary_row]
