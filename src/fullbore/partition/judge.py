"""Judge: what many cuts of the same layers would take, simulated side by side.

All that a cut changes are the durations of the stages, the sizes at the boundaries and the bytes of the ranks, and all
of these are differences of prefix sums over the layers. So a thousand cuts are a few array operations, and the compiled
schedule turns them into a thousand makespans at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import links_over, sizes_over, stages_over
from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule
from fullbore.simulate.compiled import compile_schedule, refuse_too_long
from fullbore.simulate.evaluate import Evaluator
from fullbore.simulate.sweep import makespans
from fullbore.simulate.wiring import Ints

__all__ = ["Judge", "Score"]

_PARTS = (StageCost(1, 0, 0, 0), StageCost(0, 1, 0, 0), StageCost(0, 0, 1, 0), StageCost(0, 0, 0, 1))
_KIND_OF_PARTS = np.array([[part.of(kind) for part in _PARTS] for kind in Kind], np.int64)
"""[kind, part] how many times forward, backward for the input, for the weights and recomputation each kind of action
takes."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """What one cut takes. The least is the best: first it must fit, then it must be fast, then even."""

    excess_bytes: int
    """How far the fullest rank is above the memory limit."""

    makespan: int
    rank_bottleneck: int
    """Work of the busiest rank for one microbatch."""

    bottleneck: int
    """Work of the slowest stage for one microbatch."""


class Judge:
    """Scores cuts of ``layers`` for one schedule."""

    def __init__(
        self,
        layers: Sequence[LayerCost],
        *,
        schedule: Schedule,
        links: Sequence[Link] = (),
        memory_bytes: int | None = None,
        slowness: Sequence[float] = (),
    ) -> None:
        """
        Args:
            links: one for each boundary of a stream; none: all free.
            slowness: how many times as long each rank takes for the same layer; none: all the same.

        Raises:
            CostsError: links that are not one a boundary.
        """
        placement = schedule.placement
        num_boundaries, ranks = schedule.num_stages - 1, placement.ranks
        self._place = np.array(stages_over(range(placement.stages_per_stream), placement))
        cuts = sizes_over(range(placement.stages_per_stream - 1), placement)
        self._cut_at = np.array([*cuts, 0])
        self.schedule, self.num_layers = schedule, len(layers)
        self._compiled = compile_schedule(schedule)
        self._memory_bytes = memory_bytes
        memory = [StageMemory.of_layers([layer]) for layer in layers]
        columns = (
            [layer.forward_ns for layer in layers],
            [layer.backward_input_ns for layer in layers],
            [layer.backward_weight_ns for layer in layers],
            [layer.recompute_ns for layer in layers],
            [stage.fixed_bytes for stage in memory],
            [stage.activation_bytes for stage in memory],
        )
        prefix = np.array([np.cumsum([0, *column]) for column in columns], np.int64)
        self._times, self._bytes = prefix[: len(_PARTS)], prefix[len(_PARTS) :]
        self._work = self._times.sum(axis=0)
        self._slowness = np.array([slowness[rank] for rank in ranks]) if slowness else None
        self._delay_after = np.zeros((num_boundaries + 1, len(layers)), np.int64)
        for boundary, link in enumerate(links_over(links, placement)):
            if ranks[boundary] != ranks[boundary + 1]:
                self._delay_after[boundary] = [link.delay_ns(layer.output_bytes) for layer in layers]
        longest = round(int(self._times[:, -1].sum()) * max(slowness, default=1))
        refuse_too_long(self.num_actions * (longest + int(self._delay_after.max(initial=0))))
        self._on_rank = (np.array(ranks) == np.arange(schedule.num_ranks)[:, None]).astype(np.int64)

    @cached_property
    def _evaluator(self) -> Evaluator:
        """Only memory needs it, and only where there is a limit."""
        return Evaluator(self._compiled)

    @property
    def num_actions(self) -> int:
        return self._compiled.num_actions

    def stage_times(self, cuts: Ints) -> Ints:
        """[cut, stage] the work of every stage for one microbatch. ``cuts``: [cut, place] layers of each stage of a
        stream."""
        if self._slowness is None:
            return self._runs(self._work, cuts)
        times: Ints = np.sum(self._part_times(cuts), axis=0)
        return times

    def rank_times(self, cuts: Ints) -> Ints:
        """[cut, rank] the work of every rank for one microbatch: the sum over its chunks."""
        times: Ints = self.stage_times(cuts) @ self._on_rank.T
        return times

    def scores(self, cuts: Ints) -> list[Score]:
        """One score a cut. Linear in cuts times actions."""
        durations = np.einsum("kc,cns->skn", _KIND_OF_PARTS, np.stack(self._part_times(cuts))).reshape(-1, len(cuts))
        last = (np.cumsum(cuts, axis=1) - 1)[:, self._cut_at]
        delays = self._delay_after[np.arange(len(self._cut_at)), last].T
        found = makespans(self._compiled, durations=durations, delays=delays)
        ranks, stages = self.rank_times(cuts).max(axis=1), self.stage_times(cuts).max(axis=1)
        columns = (column.tolist() for column in (self.excess(cuts), found, ranks, stages))
        return [Score(*values) for values in zip(*columns, strict=True)]

    def by_promise(self, cuts: Ints) -> Ints:
        """The cuts in the order in which they are worth simulating: those that fit, then with the lightest busiest
        rank, then with the most even ranks, then the same of stages."""
        stages = self.stage_times(cuts)
        ranks = stages @ self._on_rank.T
        keys = (_uneven(stages), stages.max(axis=1), _uneven(ranks), ranks.max(axis=1), self.excess(cuts))
        ordered: Ints = cuts[np.lexsort(keys)]
        return ordered

    def peak_bytes(self, cuts: Ints) -> Ints:
        """[rank, cut] the most each rank keeps at once."""
        fixed, kept = (self._runs(column, cuts).T for column in self._bytes)
        return self._evaluator.peak_bytes(fixed, kept)

    def _part_times(self, cuts: Ints) -> list[Ints]:
        """[cut, stage] of each of the parts."""
        runs = [self._runs(column, cuts) for column in self._times]
        if self._slowness is None:
            return runs
        return [np.rint(times * self._slowness).astype(np.int64) for times in runs]

    def excess(self, cuts: Ints) -> Ints:
        """[cut] how far the fullest rank is above the memory limit; 0 without one."""
        if self._memory_bytes is None:
            return np.zeros(len(cuts), np.int64)
        excess: Ints = np.maximum(self.peak_bytes(cuts).max(axis=0) - self._memory_bytes, 0)
        return excess

    def _runs(self, prefix: Ints, cuts: Ints) -> Ints:
        """[cut, stage] sums over the layers of every stage."""
        sums: Ints = np.diff(prefix[np.cumsum(cuts, axis=1)], axis=1, prepend=0)[:, self._place]
        return sums


def _uneven(times: Ints) -> Ints:
    """[cut] the sum of distances from the mean, as whole numbers."""
    distances: Ints = np.abs(times * times.shape[1] - times.sum(axis=1, keepdims=True)).sum(axis=1)
    return distances
