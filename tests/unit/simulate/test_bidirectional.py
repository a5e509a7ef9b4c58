from __future__ import annotations

import pytest

from fullbore.costs.links import Link
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ir.action import Compute
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.simulate.bound import load_bound
from fullbore.simulate.columnar import columnar
from fullbore.simulate.compiled import compile_schedule
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations, peak_bytes
from tests.timetable import equal_costs, rows, timetable

ORDERS = ("0F0 2F1 2B1 0B0", "3F1 1F0 1B0 3B1")
CHIMERA = Schedule(
    "chimera", Placement.bidirectional(2), 2, tuple(tuple(map(Compute.parse, order.split())) for order in ORDERS)
)


def test_two_streams_fill_each_others_gaps() -> None:
    """Chimera with p = 2, m = 2: no rank idles, where one stream of two microbatches idles a third of the time."""
    assert timetable(simulate(CHIMERA, costs=equal_costs(4))) == rows("""
        0 1 1' 0'
        1 0 0' 1'
    """)
    assert load_bound(CHIMERA, costs=equal_costs(4)) == 4


def test_each_stream_crosses_its_own_boundaries_and_none_the_middle() -> None:
    """0|1 delays the stream of microbatch 0, 2|3 that of microbatch 1; 1|2 lies between two models."""
    links = [Link(2), Link(1000), Link(3)]
    expected = rows("""
        0 . . . 1  1' . 0' . .
        1 . . 0 0' .  . .  . 1'
    """)
    assert timetable(simulate(CHIMERA, costs=equal_costs(4), links=links)) == expected
    assert timetable(columnar(compile_schedule(CHIMERA), costs=equal_costs(4), links=links).to_timeline()) == expected
    with pytest.raises(CostsError, match="one link for each of the 3 boundaries"):
        simulate(CHIMERA, costs=equal_costs(4), links=links[:1])


def test_both_models_take_memory_on_every_rank() -> None:
    assert peak_activations(CHIMERA) == (2, 2)
    stages = [StageMemory(10, 1), StageMemory(20, 2), StageMemory(20, 4), StageMemory(10, 8)]
    assert peak_bytes(CHIMERA, stages=stages) == (10 + 20 + 1 + 4, 20 + 10 + 2 + 8)


def test_mirrors_may_cost_different_times() -> None:
    costs = [StageCost(1, 1, 0), StageCost(1, 1, 0), StageCost(2, 2, 0), StageCost(1, 1, 0)]
    assert timetable(simulate(CHIMERA, costs=costs)) == rows("""
        0 1 1 1' 1' 0'
        1 0 0' . .  1'
    """)
