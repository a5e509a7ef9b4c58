"""Search: the cut with the least simulated makespan, starting from the one with the least bottleneck.

A cut whose slowest stage takes b has a makespan of at least m b. So only cuts with b up to M / m can be faster than a
makespan M already found: with the M of the cut with the least bottleneck, that is the shortlist, and nothing outside it
can win. Where it is short, all of it is simulated and the answer is exact. Where it is long, the best known cuts are
changed step by step: one layer moves from any stage to any other, the layers between shift along, and what promises
most is simulated; it ends when none of the best few gets better. Several chunks a rank go the second way unless all
cuts can be listed, because there the sums over a rank's chunks matter and no single chunk does. So do two streams,
where each copy of a stage sees only a part of the microbatches.

The work is bounded in simulated actions, never in seconds, so the same input gives the same cut on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from fullbore.ir.schedule import Schedule
from fullbore.partition.judge import Judge, Score
from fullbore.partition.min_max import Allowed
from fullbore.partition.near_cuts import near_cuts
from fullbore.simulate.wiring import Ints

__all__ = ["Found", "Looked", "evened", "search", "too_large"]

_MOST_ACTIONS = 2_000_000
"""Simulated in one search: less than a tenth of a second for a schedule with wide levels."""

_MOST_CUTS = 4096
_WIDTH = 6
"""How many of the best cuts are changed further."""

_LOOKED_AT = 480
_TRIED_AT_ONCE = 160
"""Of the changed cuts, so many are looked at and so many are simulated."""


class Looked(Enum):
    """At which cuts the search looked."""

    ALL = "all that can be faster"
    SOME = "the most promising ones"
    STARTS = "none but the starts: too many actions"


@dataclass(frozen=True, slots=True)
class Found:
    """The best cut, and how it was found."""

    counts: tuple[int, ...]
    score: Score
    start: Score
    """Of the cut with the least bottleneck."""

    looked: Looked
    num_cuts: int
    """How many were simulated."""


def search(
    judge: Judge, starts: Sequence[tuple[int, ...]], *, weights: Sequence[int], allowed: Allowed | None = None
) -> Found:
    """The best of what was simulated; of equal ones the earlier start, then the one with more layers up front.

    Args:
        starts: cuts to begin with, the first of them with the least bottleneck.
        weights: the time of each layer.
        allowed: which stages may hold which layers, where that is known without a simulation.
    """
    placement = judge.schedule.placement
    num_stages = placement.stages_per_stream
    pool = _Pool(judge)
    pool.add(starts)
    start = pool.known[starts[0]]
    if too_large(judge.schedule):
        return Found(pool.best[0], pool.known[pool.best[0]], start, Looked.STARTS, len(pool.known))
    limit = _limit(judge.schedule)
    near: list[tuple[int, ...]] | None = None
    bound = None
    if placement.num_stages == placement.num_ranks:
        bound = start.makespan // judge.schedule.num_microbatches
        near = near_cuts(weights, num_stages=num_stages, bound=bound, allowed=allowed, limit=limit)
    elif math.comb(len(weights) - 1, num_stages - 1) <= limit:
        near = near_cuts(weights, num_stages=num_stages, bound=sum(weights), limit=limit)
    if near is not None:
        pool.add(near)
    else:
        _improve(pool, bound=bound, limit=limit)
    best = pool.best[0]
    return Found(best, pool.known[best], start, Looked.SOME if near is None else Looked.ALL, len(pool.known))


def too_large(schedule: Schedule) -> bool:
    """Would the actions of a search be used up before every stage was changed twice?"""
    return _limit(schedule) < 2 * schedule.num_stages


def _limit(schedule: Schedule) -> int:
    return min(_MOST_CUTS, _MOST_ACTIONS // max(sum(map(len, schedule.orders)), 1))


def evened(judge: Judge, cut: tuple[int, ...]) -> tuple[int, ...]:
    """The cut with one layer after the other moved to where it makes the ranks fit, lighter or more even; no
    simulation. Each round is O(p^2 v^2), and there are as many as layers have to move."""
    moves = _moves(len(cut))
    best = np.array([cut], np.int64)
    while True:
        changed = best + moves
        first = judge.by_promise(np.concatenate([best, changed[(changed > 0).all(axis=1)]]))[:1]
        if (first == best).all():
            return tuple(best[0].tolist())
        best = first


class _Pool:
    """The cuts simulated so far, and the best few of them."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.known: dict[tuple[int, ...], Score] = {}
        self.best: list[tuple[int, ...]] = []
        self._starts: dict[tuple[int, ...], int] = {}

    def add(self, cuts: Iterable[tuple[int, ...]]) -> None:
        new = [cut for cut in dict.fromkeys(cuts) if cut not in self.known]
        if not new:
            return
        self.known.update(zip(new, self.judge.scores(np.array(new, np.int64)), strict=True))
        if not self._starts:
            self._starts = {cut: place for place, cut in enumerate(new)}
        self.best = sorted([*self.best, *new], key=self._order)[:_WIDTH]

    def _order(self, cut: tuple[int, ...]) -> tuple[int, int, int, Score, tuple[int, ...]]:
        score = self.known[cut]
        start = self._starts.get(cut, len(self._starts))
        return score.excess_bytes, score.makespan, start, score, tuple(-layers for layers in cut)


def _improve(pool: _Pool, *, bound: int | None, limit: int) -> None:
    """Change the best cuts until none of the best few can be changed to advantage, or the limit is reached."""
    moves = _moves(pool.judge.schedule.placement.stages_per_stream)
    changed: set[tuple[int, ...]] = set()
    while len(pool.known) < limit:
        open_cuts = [cut for cut in pool.best if cut not in changed]
        if not open_cuts:
            return
        changed.add(open_cuts[0])
        cuts = np.array(open_cuts[0], np.int64) + moves
        cuts = cuts[(cuts > 0).all(axis=1)]
        if bound is not None:
            cuts = cuts[pool.judge.stage_times(cuts).max(axis=1) <= bound]
        new = [cut for cut in map(tuple, pool.judge.by_promise(cuts)[:_LOOKED_AT].tolist()) if cut not in pool.known]
        pool.add(new[: min(_TRIED_AT_ONCE, limit - len(pool.known))])


def _moves(num_stages: int) -> Ints:
    """[move, stage] one layer from any stage to any other."""
    one = np.eye(num_stages, dtype=np.int64)
    both = one[:, None] - one[None, :]
    return both[~np.eye(num_stages, dtype=bool)]
