"""No schedule beats the load bound, and some meet it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.schedule import Schedule
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.bound import load_bound
from fullbore.simulate.engine import simulate
from tests.property.strategies import costed


@given(costed())
def test_no_order_is_faster_than_the_bound(case: tuple[Schedule, list[StageCost], list[Link]]) -> None:
    schedule, costs, links = case
    bound = load_bound(schedule, costs=costs, links=links)
    timeline = simulate(schedule, costs=costs, links=links)
    assert bound <= max(span.end_ns for span in timeline.spans)


@given(costed())
def test_neither_with_recomputations_of_their_own(case: tuple[Schedule, list[StageCost], list[Link]]) -> None:
    schedule, costs, links = case
    ahead = recompute_ahead(schedule)
    taken = [replace(cost, recompute=stage) for stage, cost in enumerate(costs)]
    timeline = simulate(ahead, costs=taken, links=links)
    assert load_bound(ahead, costs=taken, links=links) <= max(span.end_ns for span in timeline.spans)


@given(st.integers(1, 8), st.integers(1, 24), st.integers(1, 9), st.integers(1, 9))
def test_1f1b_meets_it_with_equal_stages_and_free_links(p: int, m: int, forward: int, backward: int) -> None:
    schedule = get("1f1b").build(p, num_microbatches=m)
    costs = [StageCost(forward, backward, 0)] * p
    assert load_bound(schedule, costs=costs) == simulate(schedule, costs=costs).compute_end_ns
