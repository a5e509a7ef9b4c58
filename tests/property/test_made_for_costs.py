"""What is made for costs: valid, within its room, the same every time, whatever the stages, the links and the cap."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullbore.costs.links import Link
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import problems
from fullbore.schedules.as_they_come import as_they_come
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.draft import Draft
from fullbore.schedules.registry import REGISTRY
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_shares
from fullbore.timeline.bubble import bubble_of
from tests.property.strategies import stage_cost, times

COST_DRIVEN = [name for name, entry in REGISTRY.items() if entry.cost_driven]


@st.composite
def instances(draw: st.DrawFn, name: str) -> tuple[int, int, ScheduleCosts, list[Link]]:
    ranks, microbatches = draw(st.integers(1, 6)), draw(st.integers(1, 14))
    entry = REGISTRY[name]
    placement = entry.place(entry.sizes(ranks, num_microbatches=microbatches))
    num_stages = placement.num_stages
    links = [Link(delay) for delay in draw(st.lists(times, min_size=num_stages - 1, max_size=num_stages - 1))]
    halves = st.integers(2, 4 * ranks).map(lambda twice: Fraction(twice, 2))
    caps = st.none() | halves | st.lists(halves, min_size=ranks, max_size=ranks)
    costs = ScheduleCosts.of(
        placement,
        stages=draw(st.lists(stage_cost, min_size=num_stages, max_size=num_stages)),
        links=links,
        memory_cap=draw(caps),
        input_backward_frees=draw(st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1)])),
    )
    return ranks, microbatches, costs, links


@pytest.mark.parametrize("name", COST_DRIVEN)
@given(data=st.data())
def test_it_is_valid_and_keeps_to_its_room(name: str, data: st.DataObject) -> None:
    ranks, microbatches, costs, links = data.draw(instances(name))
    schedule = REGISTRY[name].build(ranks, num_microbatches=microbatches, costs=costs)
    assert problems(schedule) == ()
    assert schedule == REGISTRY[name].build(ranks, num_microbatches=microbatches, costs=costs)
    own = Fraction({"zb-1p": 1, "zb-2p": 2, "zb-v": 1}[name] * ranks)
    caps = costs.memory_cap or (own,) * ranks
    most = caps if name == "zb-v" else [min(cap, own) for cap in caps]
    kept = peak_shares(schedule, input_backward_frees=costs.input_backward_frees)
    assert all(share <= cap for share, cap in zip(kept, most, strict=True))
    assert simulate(schedule, costs=costs.stages, links=links).compute_end_ns > 0 or not any(
        cost.total for cost in costs.stages
    )


@pytest.mark.parametrize("name", COST_DRIVEN)
@given(data=st.data())
def test_a_draft_knows_the_times_it_leads_to(name: str, data: st.DataObject) -> None:
    """Its makespan and its longest span are the simulator's; and what comes as it comes always comes to an end."""
    ranks, microbatches, costs, links = data.draw(instances(name))
    entry = REGISTRY[name]
    placement = entry.place(entry.sizes(ranks, num_microbatches=microbatches))
    shares = costs.memory_cap or (Fraction(ranks),) * ranks
    draft = Draft("draft", placement, costs, num_microbatches=microbatches, shares=shares)
    as_they_come(draft)
    schedule: Schedule = draft.schedule()
    assert problems(schedule) == ()
    bubble = bubble_of(simulate(schedule, costs=costs.stages, links=links))
    last = max(span.end_ns for span in simulate(schedule, costs=costs.stages, links=links).spans)
    assert draft.makespan == last
    assert draft.span == max(bubble.span_ns)
    kept = peak_shares(schedule, input_backward_frees=costs.input_backward_frees)
    assert all(share <= cap for share, cap in zip(kept, shares, strict=True))
