"""A schedule turned into columns once, so that simulating it for many costs is a few array operations each time.

`fullbore.simulate.engine` walks one schedule for one set of costs, action by action; a search tries one schedule with
thousands of sets. What does not depend on costs is worked out here: who waits for whom, and in which order all can be
computed at once. Arrays are indexed by *node*: the actions of rank 0 in their order, then those of rank 1, and so on.

An action starts when the one before it on its rank has ended and its message has arrived, so the length of the longest
chain of such edges that ends in an action is its *level*, and all actions of one level can be computed together:

    1F1B, p = 2, m = 2     rank 0   0F0 0F1 0B0 0B1      levels 0 1 3 5
                           rank 1   1F0 1B0 1F1 1B1             1 2 3 4

1F1B and GPipe have 2 (m + p - 1) levels, p actions wide. Compiling is linear in the number of actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fullbore.costs.delays import boundary_delays, require_costs
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import Rule
from fullbore.simulate.wiring import CODE, KINDS, Ints, levels_of, pairs_of, refused, sources

__all__ = ["CompiledSchedule", "compile_schedule", "refuse_too_long"]

_LONGEST = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSchedule:
    """The columns of a schedule. Nothing here depends on costs."""

    schedule: Schedule
    edges: tuple[int, ...]
    """Rank r's actions are the nodes edges[r] to edges[r + 1] - 1."""

    cost_row: Ints
    """[node] stage * number of kinds + kind: the action's row in a flat table of costs."""

    boundary_row: Ints
    """[node] the boundary its message comes over; the number of boundaries where it needs none."""

    stage: Ints
    kind: Ints
    """[node] index of the action's kind in the order of `Kind`."""

    unit: Ints
    """[node] microbatch * number of slices + slice."""

    source: Ints
    """[node] the node whose message it needs; -1 where it needs none."""

    by_level: Ints
    """[place] the nodes, level by level."""

    level_edges: tuple[int, ...]
    """Level k is the places level_edges[k] to level_edges[k + 1] - 1."""

    before_place: Ints
    """[place] 1 + the place of the action before it on its rank; 0 where there is none."""

    source_place: Ints
    """[place] 1 + the place of its source; 0 where there is none."""

    pairs: tuple[Ints, Ints]
    """The nodes of the forwards that run at once with the backward after them, and those of these backwards."""

    pair_places: tuple[Ints, Ints]
    """Their places."""

    @property
    def num_actions(self) -> int:
        return self.edges[-1]

    def durations(self, costs: Sequence[StageCost]) -> Ints:
        """[node] what each action takes. Raises `CostsError` unless there is one cost a stage."""
        require_costs(costs, num_stages=self.schedule.num_stages)
        table = [cost.of(kind) for cost in costs for kind in KINDS]
        refuse_too_long(self.num_actions * max(table))
        return np.array(table, np.int64)[self.cost_row]

    def delays(self, *, links: Sequence[Link] = (), message_bytes: Sequence[int] | int = 0) -> Ints:
        """[node] how long each action's message is under way; 0 where it needs none. Raises as `boundary_delays`."""
        table = [*boundary_delays(self.schedule.placement, links=links, message_bytes=message_bytes), 0]
        refuse_too_long(self.num_actions * max(table))
        return np.array(table, np.int64)[self.boundary_row]


def refuse_too_long(bound: int) -> None:
    """Columns hold 64-bit integers; `fullbore.simulate.engine.simulate` has no such limit."""
    if bound >= _LONGEST:
        raise CostsError(
            f"a compiled simulation ends before 2^62 time units (these costs could reach {bound:.3g}); "
            "give times in a coarser unit, or with fewer decimals"
        )


def compile_schedule(schedule: Schedule) -> CompiledSchedule:
    """Turn a schedule into columns.

    Raises:
        InvalidSchedule: it stalls (names each stuck action), or an action is there twice, on another rank than its
            stage's, or without the action whose result it needs.
    """
    actions = [action for order in schedule.orders for action in order]
    count = len(actions)
    edges = (0, *accumulate(map(len, schedule.orders)))
    stage = np.fromiter((action.stage for action in actions), np.int64, count)
    cuts = {action.slice_index for action in actions}
    if cuts - ({None} if schedule.num_slices == 1 else set(range(schedule.num_slices))):
        raise refused(schedule, Rule.KNOWN_SLICE)
    unit = np.fromiter((a.microbatch * schedule.num_slices + (a.slice_index or 0) for a in actions), np.int64, count)
    kind = np.fromiter((CODE[action.kind] for action in actions), np.int64, count)
    pairs = pairs_of(schedule, edges)
    source, boundary = sources(schedule, edges, stage, kind, unit, pairs=pairs)
    levels = levels_of(source, kind, edges)
    if sum(map(len, levels)) < count:
        raise refused(schedule, Rule.NO_CYCLE)
    node = np.arange(count)
    by_level = np.concatenate(levels) if levels else node
    place = np.zeros(count + 1, np.int64)  # the last one stands for "none", which is -1
    place[by_level] = node + 1
    before = node - 1
    before[[edge for edge in edges if edge < count]] = -1
    return CompiledSchedule(
        schedule=schedule,
        edges=edges,
        cost_row=stage * len(KINDS) + kind,
        boundary_row=boundary,
        stage=stage,
        kind=kind,
        unit=unit,
        source=source,
        by_level=by_level,
        level_edges=(0, *accumulate(map(len, levels))),
        before_place=place[before[by_level]],
        source_place=place[source[by_level]],
        pairs=pairs,
        pair_places=(place[pairs[0]] - 1, place[pairs[1]] - 1),
    )
