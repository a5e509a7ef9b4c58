from __future__ import annotations

import numpy as np
import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError, InvalidSchedule
from fullbore.ids import Rank
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.registry import get
from fullbore.simulate.columnar import columnar
from fullbore.simulate.compiled import compile_schedule
from fullbore.simulate.sweep import makespans
from tests.timetable import equal_costs, schedule_of


def test_levels_are_chains_of_waiting() -> None:
    """The drawing in the module."""
    compiled = compile_schedule(schedule_of([0, 1], ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], num_microbatches=2))
    level = np.repeat(np.arange(6), np.diff(compiled.level_edges))[np.argsort(compiled.by_level)]
    assert level.tolist() == [0, 1, 3, 5, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(1, 3), (4, 2), (4, 16)])
def test_fill_and_drain_has_two_levels_a_slot(name: str, num_ranks: int, num_microbatches: int) -> None:
    compiled = compile_schedule(get(name).build(num_ranks, num_microbatches=num_microbatches))
    assert len(compiled.level_edges) - 1 == 2 * (num_microbatches + num_ranks - 1)


@pytest.mark.parametrize(
    ("orders", "rule"),
    [
        (["0F0 0F0 0B0", "1F0 1B0"], "once"),
        (["0F0 1F0 0B0", "1B0"], "own-stage"),
        (["0F0 0B0 0F7", "1F0 1B0"], "known-microbatch"),
        (["0F0 0B0 0I0", "1F0 1B0"], "whole-or-split"),
    ],
)
def test_what_the_columns_cannot_hold_is_refused_by_its_rule(orders: list[str], rule: str) -> None:
    with pytest.raises(InvalidSchedule, match=rule) as raised:
        compile_schedule(schedule_of([0, 1], orders, num_microbatches=1, name="bad"))
    assert raised.value.rules == (rule,)


def test_a_stall_is_told_as_the_exact_simulation_tells_it() -> None:
    cycle = schedule_of([0, 1], ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"], num_microbatches=2, name="stuck")
    with pytest.raises(InvalidSchedule, match=r"'stuck' stalls: rank 0 at 0B0 waits .*; rank 1 at 1F1 waits"):
        compile_schedule(cycle)


def test_no_action_at_all() -> None:
    empty = compile_schedule(Schedule("empty", Placement((Rank(0),)), 1, ((),)))
    found = columnar(empty, costs=equal_costs(1))
    assert (found.makespan_ns, found.to_timeline().spans, found.bubble().span_ns) == (0, (), (0,))
    assert makespans(empty, durations=np.zeros((5, 2), np.int64), delays=np.zeros((1, 2), np.int64)).tolist() == [0, 0]


def test_counts_and_sizes_are_checked() -> None:
    compiled = compile_schedule(get("1f1b").build(2, num_microbatches=2))
    with pytest.raises(CostsError, match=r"one cost for each of the 2 stages \(given 3\)"):
        columnar(compiled, costs=equal_costs(3))
    with pytest.raises(CostsError, match=r"one link for each of the 1 boundaries \(given 2\)"):
        columnar(compiled, costs=equal_costs(2), links=[Link(), Link()])
    with pytest.raises(CostsError, match="give times in a coarser unit"):
        columnar(compiled, costs=[StageCost(2**61, 0, 0)] * 2)
