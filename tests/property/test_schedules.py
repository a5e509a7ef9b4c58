"""What holds for every registered schedule at every size."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Kind
from fullbore.ir.codec import format_schedule, parse_schedule
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import problems
from fullbore.schedules.registry import REGISTRY
from fullbore.simulate.bound import load_bound
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.bubble import bubble_of
from tests.property.strategies import published, registered, schedules


@given(registered())
def test_every_action_is_there_exactly_once_and_on_its_rank(schedule: Schedule) -> None:
    """Every microbatch takes one stream; on each of its stages each slice has F, and B or else I and W."""
    stages: dict[int, set[int]] = {}
    for rank, order in enumerate(schedule.orders):
        forwards = {action for action in order if action.kind is Kind.FORWARD}
        expected: Counter[Compute] = Counter(forwards)
        for action in forwards:
            stages.setdefault(action.microbatch, set()).add(action.stage)
            whole = action.of_kind(Kind.BACKWARD) in order
            kinds = (Kind.BACKWARD,) if whole else (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
            expected.update(action.of_kind(kind) for kind in kinds)
        assert Counter(order) == expected
        assert {action.stage for action in order} <= set(schedule.placement.stages_of(Rank(rank)))
        slices = Counter((action.stage, action.microbatch) for action in forwards)
        assert set(slices.values()) == {schedule.num_slices}
    assert sorted(stages) == list(range(schedule.num_microbatches))
    assert all(taken in [set(stream) for stream in schedule.placement.streams] for taken in stages.values())


@given(schedules)
def test_every_rule_holds(schedule: Schedule) -> None:
    assert problems(schedule) == ()


@given(schedules)
def test_text_round_trips(schedule: Schedule) -> None:
    text = format_schedule(schedule)
    assert parse_schedule(text) == schedule
    assert format_schedule(parse_schedule(text)) == text


@pytest.mark.parametrize("name", REGISTRY)
@given(data=st.data(), cost=st.builds(StageCost, st.integers(0, 40), st.integers(0, 40), st.integers(1, 40)))
def test_makespan_and_activations_are_what_the_formulas_say(name: str, data: st.DataObject, cost: StageCost) -> None:
    case = data.draw(published(name))
    entry, sizes, schedule = case.entry, case.sizes, case.schedule
    assert schedule.num_stages == sizes.num_stages
    costs = [cost] * sizes.num_stages
    bubble = bubble_of(simulate(schedule, costs=costs))
    parts = schedule.forwards_per_share
    share = StageCost(cost.forward * parts, cost.backward_input * parts, cost.backward_weight * parts)
    work = sizes.num_microbatches * share.total
    span = entry.span(sizes, share)
    if span is None:
        assert load_bound(schedule, costs=costs) <= bubble.makespan_ns <= work * sizes.num_ranks
    else:
        assert bubble.makespan_ns == span
    assert bubble.busy_ns == (work,) * sizes.num_ranks
    formula = tuple(entry.peak(sizes, rank) for rank in range(sizes.num_ranks))
    if entry.peak_is_exact:
        assert peak_activations(schedule) == formula
    else:
        assert all(kept <= most for kept, most in zip(peak_activations(schedule), formula, strict=True))


@given(registered(), st.data())
def test_one_action_left_out_or_done_twice_is_noticed(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    order = list(schedule.orders[rank])
    position = data.draw(st.integers(0, len(order) - 1))
    if data.draw(st.booleans()):
        order.insert(position, order[position])
        rule = "once"
    else:
        del order[position]
        rule = "complete"
    orders = (*schedule.orders[:rank], tuple(order), *schedule.orders[rank + 1 :])
    found = problems(Schedule(schedule.name, schedule.placement, schedule.num_microbatches, orders))
    # without its backwards, one stage of one microbatch is a legal evaluation
    only_forward = all(action.kind is Kind.FORWARD for order in orders for action in order)
    assert only_forward or rule in {problem.rule for problem in found}


@given(schedules)
def test_actions_are_their_own_text(schedule: Schedule) -> None:
    assert all(Compute.parse(str(action)) == action for order in schedule.orders for action in order)
