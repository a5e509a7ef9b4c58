from __future__ import annotations

from fractions import Fraction

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.ir.validate import validate
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from fullbore.synthesis.instance import WaitCycle, last_ends
from fullbore.synthesis.justification import justified, makespan
from fullbore.synthesis.list_scheduling import Policy, list_schedule, policies
from tests.support.instances import costs_for, instance_of


def test_two_ranks_two_microbatches_by_hand() -> None:
    """The rank with the loss runs a backward as soon as it can, and weights fill what is left."""
    instance = instance_of(Placement.linear(2), num_microbatches=2, stages=[(1, 1, 1)])
    found = list_schedule(instance, Policy())
    schedule = instance.schedule(found[1], name="auto")
    grid = [" ".join(map(str, order)) for order in schedule.orders]
    assert grid == ["0F0 0F1 . 0I0 0W0 0I1 0W1".replace(". ", ""), "1F0 1I0 1F1 1I1 1W0 1W1"]
    assert found[0] == simulate(schedule, costs=costs_for(instance.placement, [(1, 1, 1)]).stages).compute_end_ns == 7


def test_justification_finds_what_the_list_missed() -> None:
    """Room for four microbatches on each of four ranks: the plain list takes 29, the best there is takes 27 (ZB-H1)."""
    instance = instance_of(Placement.linear(4), num_microbatches=8, stages=[(1, 1, 1)], cap=4)
    listed, orders = list_schedule(instance, Policy())
    assert (listed, justified(instance, orders)[0]) == (29, 27)
    assert peak_activations(instance.schedule(justified(instance, orders)[1], name="auto")) == (4, 4, 4, 4)


def test_a_list_in_a_v_is_as_fast_as_zb_v() -> None:
    instance = instance_of(Placement.snake(8, num_chunks=2), num_microbatches=32, stages=[(1, 1, 1)], cap=8)
    assert list_schedule(instance, Policy())[0] == 2 * 99.5


@pytest.mark.parametrize("place", [Placement.loop, Placement.snake])
@pytest.mark.parametrize("cap", [1, Fraction(3, 2), 3])
def test_no_policy_locks_or_exceeds_the_room(place: type[Placement], cap: Fraction | int) -> None:
    placement = place(4, num_chunks=3)  # type: ignore[operator]
    instance = instance_of(placement, num_microbatches=5, stages=[(3, 4, 2)], delay=1, cap=cap)
    for policy in policies(chunked=True)[::23]:
        orders = list_schedule(instance, policy)[1]
        validate(instance.schedule(orders, name="auto"), most_in_flight=[int(3 * cap)] * 4)


def test_what_the_backward_for_the_input_frees_makes_room() -> None:
    sizes = {"num_microbatches": 8, "stages": [(1, 1, 6)], "cap": 1}
    late = instance_of(Placement.linear(2), **sizes)  # type: ignore[arg-type]
    soon = instance_of(Placement.linear(2), **sizes, frees=Fraction(1))  # type: ignore[arg-type]
    assert list_schedule(late, Policy())[0] == 8 * (1 + 1 + 1 + 1 + 6)
    assert 1 + 8 * 8 <= list_schedule(soon, Policy())[0] <= 2 + 8 * 8
    assert soon.fit(list_schedule(soon, Policy())[1])
    assert not soon.fit(((0, 0), (3,)))


def test_codes_and_schedules_are_the_same() -> None:
    schedule = get("zb-h1").build(3, num_microbatches=5)
    instance = instance_of(schedule.placement, num_microbatches=5, stages=[(2, 3, 1)])
    orders = instance.orders_of(schedule)
    assert orders is not None
    assert instance.schedule(orders, name="zb-h1") == schedule
    costs = costs_for(schedule.placement, [(2, 3, 1)])
    assert makespan(instance, orders) == simulate(schedule, costs=costs.stages).compute_end_ns


def test_a_whole_backward_is_its_two_parts() -> None:
    schedule = get("1f1b").build(2, num_microbatches=1)
    instance = instance_of(schedule.placement, num_microbatches=1, stages=[(1, 1, 1)])
    assert instance.orders_of(schedule) == ((0, 1, 2), (3, 4, 5))


def test_orders_that_wait_in_a_cycle_are_noticed() -> None:
    instance = instance_of(Placement.linear(2), num_microbatches=1, stages=[(1, 1, 1)])
    with pytest.raises(WaitCycle):
        last_ends(instance, ((1, 0, 2), (3, 4, 5)))


def test_room_for_less_than_one_share_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"one microbatch keeps 1 share on every rank \(the memory cap of rank 0"):
        instance_of(Placement.linear(2), num_microbatches=1, stages=[(1, 1, 1)], cap=Fraction(1, 2))


def test_a_bidirectional_placement_is_refused() -> None:
    with pytest.raises(ScheduleError, match="one stream of stages"):
        instance_of(Placement.bidirectional(2), num_microbatches=2, stages=[(1, 1, 1)])


def test_the_plain_policy_is_tried_first() -> None:
    for chunked in (False, True):
        grid = policies(chunked=chunked)
        assert grid[0] == Policy()
        assert len(set(grid)) == len(grid)
