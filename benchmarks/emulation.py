"""Emulated devices: what every action takes, the same for every system that runs the step.

An emulated device waits instead of computing, so nothing but the runtimes competes for the cores, and what a step takes
beyond its simulated makespan is what the runtime costs. A rank has F = 10 ms of forward and B = 20 ms of backward for
every microbatch (unless said otherwise), shared out evenly among its stages. With jitter every duration is drawn anew,
uniformly, for its (round, stage, kind, microbatch), so that two systems in one round wait equally long for the same
action.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.schedule import Schedule
from fullbore.schedules.registry import get
from fullbore.simulate.compiled import CompiledSchedule, compile_schedule
from fullbore.simulate.sweep import end_times

__all__ = ["Cell", "Durations", "Simulated", "Stopwatch", "wait_precisely"]

Durations = Mapping[Compute, int]
"""Nanoseconds of every action."""

_SET_TIMER_SLACK = 29


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the table."""

    family: str
    """``1f1b`` or ``interleaved-1f1b``."""

    num_ranks: int
    num_microbatches: int
    boundary_bytes: int
    jitter: float
    """Share of each duration by which it may be longer or shorter."""

    forward_ns: int = 10_000_000
    backward_ns: int = 20_000_000
    """Of a rank, for one microbatch."""

    def __str__(self) -> str:
        size = f"{self.boundary_bytes >> 10}KiB"
        return f"{self.family},p={self.num_ranks},m={self.num_microbatches},{size},jitter={self.jitter:g}"

    @property
    def num_chunks(self) -> int:
        return 1 if self.family == "1f1b" else 2

    def schedule(self, *, extra_warmup: int = 0) -> Schedule:
        return get(self.family).build(
            self.num_ranks,
            num_microbatches=self.num_microbatches,
            num_chunks=None if self.num_chunks == 1 else self.num_chunks,
            options={"extra_warmup": extra_warmup},
        )

    def durations(self, round_index: int) -> dict[Compute, int]:
        """What every action takes in this round; the same on every rank and for every system."""
        nominal = {Kind.FORWARD: self.forward_ns, Kind.BACKWARD: self.backward_ns}
        drawn: dict[Compute, int] = {}
        for stage in map(StageIndex, range(self.num_ranks * self.num_chunks)):
            for kind, whole in nominal.items():
                source = Random(f"{round_index}/{stage}/{kind.value}")
                for index in map(MicrobatchIndex, range(self.num_microbatches)):
                    share = source.uniform(1 - self.jitter, 1 + self.jitter)
                    drawn[Compute(stage, kind, index)] = round(whole / self.num_chunks * share)
        return drawn


class Simulated:
    """A schedule's makespan for given durations, without any communication."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    @cached_property
    def _compiled(self) -> CompiledSchedule:
        return compile_schedule(self.schedule)

    def makespan_ns(self, durations: Durations) -> int:
        taken = np.array([durations[action] for order in self.schedule.orders for action in order], np.int64)
        return int(end_times(self._compiled, durations=taken, delays=np.zeros_like(taken)).max())

    def actions_of(self, rank: int) -> tuple[Compute, ...]:
        return self.schedule.orders[Rank(rank)]


class Stopwatch:
    """Waits out the actions of one step and adds up how long that was to be, and by how much the machine overslept."""

    def __init__(self) -> None:
        self._durations: Durations = {}
        self.asked_ns = self.overslept_ns = 0

    def set(self, durations: Durations) -> None:
        """Before a step. An action without a duration takes no time."""
        self._durations = durations
        self.asked_ns = self.overslept_ns = 0

    def wait(self, action: Compute) -> None:
        duration_ns = self._durations.get(action, 0)
        if duration_ns:
            self.asked_ns += duration_ns
            start = time.perf_counter_ns()
            time.sleep(duration_ns / 1e9)
            self.overslept_ns += time.perf_counter_ns() - start - duration_ns


def wait_precisely() -> None:
    """Ask the kernel not to add its usual 50 us to the waits of this thread (Linux), so that waits are no overhead."""
    try:
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1000, 0, 0, 0)
    except (AttributeError, OSError):
        return
