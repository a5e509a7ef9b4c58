from __future__ import annotations

import pytest

from fullbore.ir.placement import Placement
from fullbore.schedules.registry import get
from fullbore.synthesis.bounds import Bound, best_bound, bound_of, simple_bound
from fullbore.synthesis.one_device import one_device_bound
from tests.support.instances import costs_for, instance_of

FAR = 10**9


@pytest.mark.parametrize(
    ("ranks", "microbatches", "simple", "one_device"),
    [(4, 8, 2585, 2690), (4, 16, 4825, 4930), (8, 16, 5285, 5530), (8, 32, 9765, 10010), (16, 48, 15165, 15690)],
)
def test_with_room_for_p_microbatches(ranks: int, microbatches: int, simple: int, one_device: int) -> None:
    """Forward 115, backward for the input 100, for the weights 65. OR-tools gives the same optima of the relaxation."""
    instance = instance_of(Placement.linear(ranks), num_microbatches=microbatches, stages=[(115, 100, 65)], cap=ranks)
    assert simple_bound(instance) == Bound(simple, "load")
    assert best_bound(instance, at_most=FAR, states=60_000) == Bound(one_device, "one device")


def test_zero_bubble_h1_is_proven_the_best_at_its_memory() -> None:
    """It idles (p - 1) (F + I - W) = 3 * 150 beyond its work: exactly what the relaxation asks for."""
    schedule = get("zb-h1").build(4, num_microbatches=8)
    costs = costs_for(schedule.placement, [(115, 100, 65)], cap=4)
    assert bound_of(schedule, costs=costs, makespan=8 * 280 + 3 * 150).makespan == 2690


def test_load_is_the_way_to_the_last_rank_and_its_work() -> None:
    instance = instance_of(Placement.linear(3), num_microbatches=4, stages=[(1, 1, 1)])
    assert simple_bound(instance) == Bound(2 + 4 * 3, "load")


def test_before_its_first_backward_a_rank_runs_only_the_forwards_it_has_room_for() -> None:
    """Rank 0: two forwards, then idle until the first backward can start at 1 + 2 * 2 + 2 = 7, then all the rest."""
    instance = instance_of(Placement.linear(2), num_microbatches=8, stages=[(1, 1, 9)], delay=2, cap=2)
    assert simple_bound(instance) == Bound(7 + 8 * 11 - 2, "load")


def test_drain_is_the_way_back_of_the_last_backward() -> None:
    """With little to do for the weights: three forwards there, 2 * (5 + 5) in all, two backwards back, and a weight."""
    instance = instance_of(Placement.linear(3), num_microbatches=2, stages=[(5, 5, 1)])
    assert simple_bound(instance) == Bound(2 * 5 + 2 * 10 + 2 * 5 + 1, "drain")


def test_memory_is_a_cap_on_speed() -> None:
    """Room for one: each microbatch goes all the way, 1 + 1 + 1 + 1 and its weights, before the next one starts."""
    instance = instance_of(Placement.linear(2), num_microbatches=5, stages=[(1, 1, 1)], cap=1)
    assert simple_bound(instance) == Bound(5 * 5, "memory")


def test_whole_backwards_have_a_bound_of_their_own() -> None:
    """1F1B with equal stages and free links is the best of all schedules with whole backwards."""
    schedule = get("1f1b").build(4, num_microbatches=8)
    costs = costs_for(schedule.placement, [(1, 1, 1)])
    assert bound_of(schedule, costs=costs, makespan=33).makespan == 33
    split = get("zb-h1").build(4, num_microbatches=8)
    assert bound_of(split, costs=costs, makespan=33).makespan < 33


def test_several_stages_a_rank_have_delays_between_them() -> None:
    """Four ranks in a V, forward 10, backwards 11 and 8 a stage, transfers 1: beyond the simple bounds."""
    instance = instance_of(Placement.snake(4, num_chunks=2), num_microbatches=4, stages=[(10, 11, 8)], delay=2, cap=2)
    simple = simple_bound(instance).makespan
    assert one_device_bound(instance, at_least=simple, at_most=FAR, states=60_000) > simple


def test_a_search_that_stops_leaves_a_bound_that_holds() -> None:
    instance = instance_of(Placement.linear(8), num_microbatches=16, stages=[(115, 100, 65)], cap=8)
    found = [one_device_bound(instance, at_least=5285, at_most=FAR, states=states) for states in (0, 100, 600, 60_000)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (5285, 5530)


def test_a_known_makespan_ends_the_search() -> None:
    instance = instance_of(Placement.linear(4), num_microbatches=8, stages=[(115, 100, 65)], cap=4)
    assert best_bound(instance, at_most=2690).makespan == 2690
    assert best_bound(instance, at_most=2600).makespan == 2600


def test_what_has_no_such_bound_has_none() -> None:
    schedule = get("dualpipe").build(4, num_microbatches=8)
    assert bound_of(schedule, costs=costs_for(schedule.placement, [(1, 1, 1)]), makespan=99).makespan == 0


def test_a_gap_is_a_part_of_the_bound() -> None:
    assert Bound(200, "load").gap(201) == pytest.approx(0.005)
    assert Bound(0, "load").gap(0) == 0
