"""The compiled simulation against the exact one, to the tick, for random schedules, costs, links and sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullbore.costs.links import Link
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.errors import InvalidSchedule
from fullbore.ir.action import Kind
from fullbore.ir.forward_only import forward_only
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.simulate import sweep
from fullbore.simulate.columnar import columnar, columnar_of
from fullbore.simulate.compiled import compile_schedule
from fullbore.simulate.engine import simulate
from fullbore.simulate.evaluate import Evaluator
from fullbore.simulate.memory import memory_curve, peak_activations, peak_bytes
from fullbore.simulate.sweep import end_times, makespans
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Row, Timeline
from tests.property.strategies import schedules, stage_cost, times
from tests.support.two_ways import shuffled_streams

both_ways = st.builds(
    shuffled_streams,
    st.builds(Placement.bidirectional, st.integers(1, 4)),
    num_microbatches=st.integers(1, 6),
    split=st.booleans(),
    seed=st.integers(0, 10**6),
)
evaluations = st.builds(
    forward_only,
    st.builds(Placement.snake, st.integers(1, 3), num_chunks=st.integers(1, 3)),
    num_microbatches=st.integers(1, 4),
)
link = st.builds(Link, times, st.none() | st.integers(10**8, 10**10))
stage_memory = st.builds(StageMemory, st.integers(0, 10**6), st.integers(0, 10**6))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, list[StageCost], list[Link], list[int]]:
    """A schedule, costs, links that may be limited by bandwidth, and message sizes."""
    schedule = draw(schedules | both_ways | evaluations)
    stages, boundaries = schedule.num_stages, schedule.num_stages - 1
    return (
        schedule,
        draw(st.lists(stage_cost, min_size=stages, max_size=stages)),
        draw(st.just([]) | st.lists(link, min_size=boundaries, max_size=boundaries)),
        draw(st.lists(st.integers(0, 1000), min_size=boundaries, max_size=boundaries)),
    )


Case = tuple[Schedule, list[StageCost], list[Link], list[int]]


@given(cases())
def test_every_time_is_that_of_the_exact_simulation(case: Case) -> None:
    schedule, costs, links, sizes = case
    exact = simulate(schedule, costs=costs, links=links, message_bytes=sizes)
    fast = columnar(compile_schedule(schedule), costs=costs, links=links, message_bytes=sizes)
    assert fast.to_timeline() == exact
    assert fast.bubble() == bubble_of(exact)
    assert fast.makespan_ns == bubble_of(exact).makespan_ns


@given(cases())
def test_both_sweeps_agree(case: Case) -> None:
    schedule, costs, links, sizes = case
    compiled = compile_schedule(schedule)
    durations, delays = compiled.durations(costs), compiled.delays(links=links, message_bytes=sizes)
    arguments = compiled, durations[compiled.by_level], delays[compiled.by_level]
    assert sweep._by_level(*arguments).tolist() == sweep._one_by_one(*arguments).tolist()


@given(cases(), st.integers(2, 5))
def test_many_costs_side_by_side_are_each_costs_alone(case: Case, count: int) -> None:
    schedule, costs, links, sizes = case
    compiled = compile_schedule(schedule)
    sets = [[StageCost(c.forward * k, c.backward_input, c.backward_weight + k) for c in costs] for k in range(count)]
    table = np.array([[cost.of(kind) for cost in costs for kind in Kind] for costs in sets]).T
    delays = np.zeros((schedule.num_stages, count), np.int64)
    for boundary, held in enumerate(links):
        if schedule.placement.ranks[boundary] != schedule.placement.ranks[boundary + 1]:
            delays[boundary] = held.delay_ns(sizes[boundary])
    alone = [bubble_of(simulate(schedule, costs=costs, links=links, message_bytes=sizes)).makespan_ns for costs in sets]
    assert makespans(compiled, durations=table, delays=delays).tolist() == alone


@given(cases(), st.data())
def test_makespan_and_peaks_need_no_timeline(case: Case, data: st.DataObject) -> None:
    schedule, costs, links, sizes = case
    count = schedule.num_stages
    memory = data.draw(st.lists(stage_memory, min_size=count, max_size=count))
    exact = simulate(schedule, costs=costs, links=links, message_bytes=sizes)
    found = Evaluator(compile_schedule(schedule)).evaluate(costs=costs, links=links, message_bytes=sizes, memory=memory)
    assert found.makespan == exact.compute_end_ns
    assert found.busy == bubble_of(exact).busy_ns
    assert found.bubble_fraction == pytest.approx(bubble_of(exact).bubble_fraction)
    assert found.peak_activations == peak_activations(schedule)
    assert found.peak_bytes == peak_bytes(schedule, stages=memory)
    curves = memory_curve(exact, placement=schedule.placement, stages=memory)
    assert tuple(max(point.bytes for point in curve) for curve in curves) == found.peak_bytes
    for curve in curves:
        assert [point.time_ns for point in curve] == sorted(point.time_ns for point in curve)
        assert curve[-1].bytes == curve[0].bytes


@given(cases(), st.integers(0, 10**6))
def test_every_action_may_have_its_own_duration(case: Case, seed: int) -> None:
    """The definition, action by action."""
    schedule, _, _, _ = case
    compiled = compile_schedule(schedule)
    random = np.random.default_rng(seed)
    durations = random.integers(0, 50, compiled.num_actions)
    delays = random.integers(0, 50, compiled.num_actions) * (compiled.source >= 0)
    ends = end_times(compiled, durations=durations, delays=delays)
    found = columnar_of(compiled, durations=durations, delays=delays)
    assert found.end_ns.tolist() == ends.tolist()
    forwards, backwards = (nodes.tolist() for nodes in compiled.pairs)
    for node in range(compiled.num_actions):
        together = [node, node + 1] if node in forwards else [node]
        before = 0 if node in compiled.edges else int(ends[node - 1])
        sources = [(int(compiled.source[one]), delays[one]) for one in together if node not in backwards]
        arrival = max((int(ends[source] + delay) for source, delay in sources if source >= 0), default=0)
        assert ends[node] == max(before, arrival) + durations[node]


@given(schedules, st.data())
def test_what_stalls_exactly_stalls_compiled(schedule: Schedule, data: st.DataObject) -> None:
    """Two actions of a rank change places: both simulations run it, or both name the same stuck ranks."""
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    order = list(schedule.orders[rank])
    first, second = (data.draw(st.integers(0, len(order) - 1)) for _ in range(2))
    order[first], order[second] = order[second], order[first]
    orders = (*schedule.orders[:rank], tuple(order), *schedule.orders[rank + 1 :])
    changed = Schedule(schedule.name, schedule.placement, schedule.num_microbatches, orders)
    costs = [StageCost(1, 2, 3)] * schedule.num_stages
    assert outcome(lambda: simulate(changed, costs=costs)) == outcome(
        lambda: columnar(compile_schedule(changed), costs=costs).to_timeline()
    )


def outcome(simulation: Callable[[], Timeline]) -> Timeline | str:
    """The timeline, or the message of the refusal."""
    try:
        return simulation()
    except InvalidSchedule as error:
        return str(error)


def test_columns_follow_the_orders() -> None:
    schedule = forward_only(Placement.linear(2), num_microbatches=2)
    found = columnar(compile_schedule(schedule), costs=[StageCost(2, 0, 0), StageCost(3, 0, 0)])
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([0, 2, 2, 5], [2, 4, 5, 8])
    assert [span.start_ns for span in found.to_timeline().on(1, Row.COMPUTE)] == [2, 5]
