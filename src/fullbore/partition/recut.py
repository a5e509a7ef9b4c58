"""Recut: the best cut for ranks of unequal speed, set against the one that was run.

`fullbore.partition.best` takes every layer to cost the same wherever it runs. Where one device is slower, moving a
layer away from it also makes the layer cheaper, so the cut has to be looked for with each rank's own factor. The search
and its guarantee are those of `fullbore.partition.search`; only the start is found in another way, by the least
bottleneck into which the layers can be packed from the first stage on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.ir.schedule import Schedule
from fullbore.partition.judge import Judge
from fullbore.partition.min_max import Allowed
from fullbore.partition.search import evened, search

__all__ = ["Recut", "recut"]


@dataclass(frozen=True, slots=True)
class Recut:
    """The best cut known, which may be the present one, and what a pass takes with either (simulated)."""

    layers_per_stage: tuple[int, ...]
    present_ns: int
    best_ns: int

    @property
    def gain(self) -> float:
        """The share of the present pass that the better cut saves."""
        return 1 - self.best_ns / self.present_ns if self.present_ns else 0.0


def recut(
    layers: Sequence[LayerCost],
    *,
    schedule: Schedule,
    present: Sequence[int],
    slowness: Sequence[float],
    links: Sequence[Link] = (),
) -> Recut:
    """Look for a cut with a shorter simulated pass than ``present``. Memory is not looked at.

    Args:
        layers: their costs on a rank whose slowness is 1.
        present: layers per stage as run; the placement has one stream.
        slowness: of each rank, at least 1: how many times as long it takes.
        links: one for each boundary; none: all free.
    """
    judge = Judge(layers, schedule=schedule, links=links, slowness=slowness)
    weights = [layer.time_ns for layer in layers]
    of_stage = [slowness[rank] for rank in schedule.placement.ranks]
    chunked = schedule.num_stages > schedule.num_ranks
    packed = _packed(weights, of_stage)
    starts = [packed, *([evened(judge, packed)] if chunked else []), tuple(present)]
    before, start = judge.scores(np.array([starts[-1], packed], np.int64))
    bound = start.makespan // schedule.num_microbatches
    allowed = None if chunked else _within(weights, of_stage, bound=bound)
    found = search(judge, starts, weights=weights, allowed=allowed)
    if found.score.makespan >= before.makespan:
        return Recut(tuple(present), before.makespan, before.makespan)
    return Recut(found.counts, before.makespan, found.score.makespan)


def _within(weights: Sequence[int], slowness: Sequence[float], *, bound: int) -> Allowed:
    """Stages no slower than ``bound``, give or take the rounding of four parts. O(1) a question."""
    prefix = (0, *accumulate(weights))
    return lambda stage, first, end: (prefix[end] - prefix[first]) * slowness[stage] <= bound + 4


def _packed(weights: Sequence[int], slowness: Sequence[float]) -> tuple[int, ...]:
    """Layers per stage with the least bottleneck, as many up front as that allows.

    Halving the range of the bottleneck, each try is O(p log L): where a bottleneck can be kept to at all, filling every
    stage up to it keeps to it.
    """
    prefix = (0, *accumulate(weights))
    low, high = 0, round(prefix[-1] * max(slowness)) + 1
    while low < high:
        middle = (low + high) // 2
        if _filled(prefix, slowness, bound=middle) is None:
            low = middle + 1
        else:
            high = middle
    cut = _filled(prefix, slowness, bound=low)
    assert cut is not None, "all layers fit into the range that was halved"
    return cut


def _filled(prefix: Sequence[int], slowness: Sequence[float], *, bound: int) -> tuple[int, ...] | None:
    """Every stage in turn takes as many layers as it can, and leaves one for each stage behind it."""
    counts, first, num_layers = [], 0, len(prefix) - 1
    for stage, slow in enumerate(slowness):
        ahead = len(slowness) - 1 - stage
        end = min(bisect_right(prefix, prefix[first] + bound / slow) - 1, num_layers - ahead)
        if end <= first:
            return None
        counts.append(end - first)
        first = end
    return tuple(counts) if first == num_layers else None
