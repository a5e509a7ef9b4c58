"""Evaluate a compiled schedule: how long the step takes and what each rank keeps at most, without a timeline.

What depends on the order alone is worked out once by `Evaluator`: the peak of every rank in activations, and the few
combinations of activations (one count a chunk) at which a rank's bytes can peak. For the rest, `makespans` answers for
many sets of costs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fullbore.costs.links import Link
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.ir.action import Kind
from fullbore.simulate.compiled import CompiledSchedule
from fullbore.simulate.sweep import end_times
from fullbore.simulate.wiring import CODE, Ints

__all__ = ["Evaluation", "Evaluator"]

_FREES = [code for kind, code in CODE.items() if kind.frees_activation]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One step, in the unit of the costs."""

    makespan: int
    busy: tuple[int, ...]
    """Work of each rank."""

    peak_activations: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    """Empty where no memory was given."""

    @property
    def bubble_fraction(self) -> float:
        """1 - busiest rank's work / makespan: a share of wall time."""
        return 1 - max(self.busy) / self.makespan if self.makespan else 0.0


class Evaluator:
    """The memory side of a compiled schedule, made once."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        self.compiled = compiled
        self._stages: list[list[int]] = []
        self._alive: list[Ints] = []
        schedule = compiled.schedule
        frees = np.isin(compiled.kind, _FREES)
        freed = np.zeros((schedule.num_stages, schedule.num_microbatches * schedule.num_slices), bool)
        freed[compiled.stage[frees], compiled.unit[frees]] = True
        keeps = (compiled.kind == CODE[Kind.FORWARD]) & freed[compiled.stage, compiled.unit]
        change = keeps.astype(np.int64) - frees
        for rank, (first, end) in enumerate(pairwise(compiled.edges)):
            stages = [int(stage) for stage in schedule.placement.stages_of(Rank(rank))]
            self._stages.append(stages)
            self._alive.append(_peaks(compiled.stage[first:end], change[first:end], stages))
        self.peak_activations = tuple(int(alive.sum(axis=1).max()) for alive in self._alive)

    def peak_bytes(self, fixed: Ints, activation: Ints) -> Ints:
        """[rank, set] the most each rank keeps. ``fixed`` and ``activation`` are [stage, set]."""
        return np.stack(
            [
                fixed[stages].sum(axis=0) + (alive @ activation[stages]).max(axis=0)
                for stages, alive in zip(self._stages, self._alive, strict=True)
            ]
        )

    def evaluate(
        self,
        *,
        costs: Sequence[StageCost],
        links: Sequence[Link] = (),
        message_bytes: Sequence[int] | int = 0,
        memory: Sequence[StageMemory] = (),
    ) -> Evaluation:
        """Makespan and peaks for one set of costs. ``memory``: one for each stage, or none. Linear."""
        compiled = self.compiled
        durations = compiled.durations(costs)
        delays = compiled.delays(links=links, message_bytes=message_bytes)
        ends = end_times(compiled, durations=durations, delays=delays)
        held: tuple[int, ...] = ()
        if memory:
            fixed = np.array([[stage.fixed_bytes] for stage in memory], np.int64)
            activation = np.array([[stage.activation_bytes] for stage in memory], np.int64)
            held = tuple(self.peak_bytes(fixed, activation)[:, 0].tolist())
        totals = (0, *np.cumsum(durations).tolist())
        busy = tuple(totals[end] - totals[first] for first, end in pairwise(compiled.edges))
        return Evaluation(int(ends.max(initial=0)), busy, self.peak_activations, held)


def _peaks(stage: Ints, change: Ints, stages: Sequence[int]) -> Ints:
    """[combination, chunk] the counts alive at which bytes can peak; with one chunk there is one such count."""
    alive = np.cumsum((stage[:, None] == np.array(stages)) * change[:, None], axis=0)
    alive = np.concatenate([np.zeros((1, len(stages)), np.int64), alive])
    return alive.max(axis=0, keepdims=True) if len(stages) == 1 else np.unique(alive, axis=0)
