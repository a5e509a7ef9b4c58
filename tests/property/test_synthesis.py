"""What holds for any costs: bound <= optimum <= auto <= every published schedule that fits, and auto fits too."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from fullbore.costs.links import Link
from fullbore.ir.placement import Placement
from fullbore.ir.validate import validate
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.compiled import compile_schedule
from fullbore.simulate.engine import simulate
from fullbore.synthesis.bounds import best_bound, bound_of, of_whole_backwards, simple_bound
from fullbore.synthesis.instance import Instance
from fullbore.synthesis.justification import justified, makespan
from fullbore.synthesis.list_scheduling import Policy, TooLate, list_schedule, policies
from fullbore.synthesis.one_device import one_device_bound
from fullbore.synthesis.replays import exact_makespan
from fullbore.synthesis.search import published_for, search
from tests.support.instances import costs_for, optimum, relaxed_optimum

times = st.integers(0, 30)


@dataclass(frozen=True, slots=True)
class Case:
    sizes: Sizes
    placement: Placement
    costs: ScheduleCosts

    @property
    def instance(self) -> Instance:
        return Instance.of(self.placement, num_microbatches=self.sizes.num_microbatches, costs=self.costs)


@st.composite
def cases(draw: st.DrawFn, *, ranks: int = 5, microbatches: int = 8, chunks: int = 2) -> Case:
    p, m, v = draw(st.integers(1, ranks)), draw(st.integers(1, microbatches)), draw(st.integers(1, chunks))
    placement = draw(st.sampled_from([Placement.loop, Placement.snake]))(p, num_chunks=v)
    stages = draw(st.lists(st.tuples(times, times, times), min_size=p * v, max_size=p * v))
    cap = draw(st.none() | st.fractions(1, p + 2, max_denominator=v))
    costs = costs_for(placement, stages, delay=draw(st.integers(0, 10)), cap=cap)
    return Case(Sizes(num_ranks=p, num_microbatches=m, num_chunks=v), placement, costs)


@given(cases())
@settings(max_examples=40)
def test_auto_is_valid_within_its_room_and_between_bound_and_published(case: Case) -> None:
    found = search(case.sizes, case.placement, costs=case.costs, name="auto")
    instance = case.instance
    validate(found.schedule, most_in_flight=instance.caps)
    assert exact_makespan(compile_schedule(found.schedule), costs=case.costs) == found.makespan
    bound = bound_of(found.schedule, costs=case.costs, makespan=found.makespan, states=2_000)
    assert bound.makespan <= found.makespan
    for schedule in published_for(case.sizes, case.placement, costs=case.costs):
        if instance.fits(schedule):
            assert found.makespan <= exact_makespan(compile_schedule(schedule), costs=case.costs), schedule.name


@given(cases(ranks=3, microbatches=2, chunks=2).filter(lambda case: case.instance.num_actions <= 12))
@settings(max_examples=40)
def test_no_bound_is_above_the_optimum_and_no_search_below(case: Case) -> None:
    instance = case.instance
    best = optimum(instance)
    assert best_bound(instance, at_most=10**6, states=10**6).makespan <= best
    assert search(case.sizes, case.placement, costs=case.costs, name="auto").makespan >= best
    whole = of_whole_backwards(instance)
    assert best_bound(whole, at_most=10**6, states=10**6).makespan <= optimum(whole)


@given(cases(ranks=4, microbatches=3).filter(lambda case: case.sizes.num_chunks * case.sizes.num_microbatches <= 4))
@settings(max_examples=60)
def test_the_one_device_bound_is_the_optimum_of_the_relaxation(case: Case) -> None:
    instance = case.instance
    relaxed = max(relaxed_optimum(instance, rank) for rank in range(instance.num_ranks))
    assert one_device_bound(instance, at_least=0, at_most=10**6, states=10**6) == relaxed


@given(cases(ranks=1, microbatches=4, chunks=1).filter(lambda case: case.instance.num_actions <= 12))
@settings(max_examples=40)
def test_with_one_rank_the_relaxation_is_the_problem(case: Case) -> None:
    instance = case.instance
    assert best_bound(instance, at_most=10**6, states=10**6).makespan == optimum(instance)


@given(cases(), st.data())
@settings(max_examples=60)
def test_every_policy_gives_a_valid_order_that_justification_does_not_worsen(case: Case, data: st.DataObject) -> None:
    instance = case.instance
    grid = policies(chunked=instance.num_stages > instance.num_ranks)
    listed, orders = list_schedule(instance, data.draw(st.sampled_from(grid)))
    better, justly = justified(instance, orders)
    assert simple_bound(instance).makespan <= better <= listed
    for one, length in ((orders, listed), (justly, better)):
        schedule = instance.schedule(one, name="auto")
        validate(schedule, most_in_flight=instance.caps)
        assert makespan(instance, one) == length
        links = [Link(delay) for delay in case.costs.delays]
        assert simulate(schedule, costs=case.costs.stages, links=links).compute_end_ns == length


@given(cases(), st.data())
@settings(max_examples=60)
def test_a_list_given_up_would_have_ended_too_late(case: Case, data: st.DataObject) -> None:
    instance = case.instance
    policy = data.draw(st.sampled_from(policies(chunked=instance.num_stages > instance.num_ranks)))
    listed, orders = list_schedule(instance, policy)
    assert list_schedule(instance, policy, at_most=listed) == (listed, orders)
    least = data.draw(st.integers(0, listed))
    try:
        assert list_schedule(instance, policy, at_most=least) == (listed, orders)
    except TooLate:
        assert listed > least


@given(cases(), st.fractions(0, 1, max_denominator=4))
@settings(max_examples=30)
def test_room_that_comes_back_early_is_used_and_kept_to(case: Case, frees: Fraction) -> None:
    costs = ScheduleCosts(
        stages=case.costs.stages,
        delays=case.costs.delays,
        memory_cap=case.costs.memory_cap,
        input_backward_frees=frees,
    )
    instance = Instance.of(case.placement, num_microbatches=case.sizes.num_microbatches, costs=costs)
    listed, orders = list_schedule(instance, Policy())
    better, justly = justified(instance, orders)
    assert instance.fit(orders)
    assert instance.fit(justly)
    assert best_bound(instance, at_most=better, states=2_000).makespan <= better <= listed
