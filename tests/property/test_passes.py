"""What holds for every schedule that a pass has changed, or that has its communication in its rows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.codec import format_schedule, parse_schedule
from fullbore.ir.explicit import explicit_of
from fullbore.ir.lower import lower
from fullbore.ir.schedule import Schedule
from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.validate import problems
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.simulate.engine import simulate
from fullbore.simulate.explicit import simulate_explicit
from fullbore.simulate.memory import peak_activations
from tests.property.strategies import costed, registered


@given(registered(), st.data())
def test_with_recomputations_any_schedule_stays_valid(schedule: Schedule, data: st.DataObject) -> None:
    stages = data.draw(st.sets(st.integers(0, schedule.num_stages - 1)))
    made = recompute_ahead(schedule, stages=[StageIndex(stage) for stage in stages])
    assert problems(made) == ()
    assert parse_schedule(format_schedule(made)) == made
    assert made.overlaps == schedule.overlaps
    assert peak_activations(made) == peak_activations(schedule)
    kept = tuple(tuple(a for a in order if a.kind is not Kind.RECOMPUTE) for order in made.orders)
    assert kept == schedule.orders
    again = sum(action.kind is Kind.RECOMPUTE for order in made.orders for action in order)
    assert again == sum(a.kind is Kind.FORWARD and a.stage in stages for order in schedule.orders for a in order)


@given(costed())
def test_right_before_its_use_a_receive_costs_nothing(case: tuple[Schedule, list[StageCost], list[Link]]) -> None:
    """And wherever else it stands, nothing gets faster."""
    schedule, costs, links = case
    apart = replace(schedule, overlaps=frozenset())
    free = simulate(apart, costs=costs, links=links)
    assert simulate_explicit(explicit_of(lower(apart), name="x"), costs=costs, links=links) == free
    early = simulate_explicit(with_transfers(apart), costs=costs, links=links)
    assert early.compute_end_ns >= free.compute_end_ns
