"""The one-pass simulation against its definition, and what holds for any costs and links."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Kind
from fullbore.ir.schedule import Schedule
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Row
from tests.property.strategies import costed

Case = tuple[Schedule, list[StageCost], list[Link]]


def backwards(kind: Kind) -> tuple[Kind, ...]:
    return () if kind is Kind.FORWARD else (Kind.BACKWARD, Kind.BACKWARD_INPUT)


def relaxed(schedule: Schedule, costs: list[StageCost], links: list[Link]) -> dict[Compute, int]:
    """End of every action by its definition, repeated until nothing changes."""
    ranks, placement = schedule.placement.ranks, schedule.placement
    together = {pair.forward: pair.backward for pair in schedule.overlaps}
    after = {backward: forward for forward, backward in together.items()}

    def arrival(action: Compute) -> int:
        """Of what a neighbour sends; a pair that runs at once sends when both are done."""
        stage, mb, cut = action.stage, action.microbatch, action.slice_index
        beside = placement.previous_stage if action.kind is Kind.FORWARD else placement.next_stage
        if action.kind is Kind.BACKWARD_WEIGHT or (source := beside(stage)) is None:
            return 0
        made = next(
            (
                Compute(source, kind, mb, cut)
                for kind in (action.kind, *backwards(action.kind))
                if Compute(source, kind, mb, cut) in known
            ),
            None,
        )
        assert made is not None
        delay = links[min(stage, source)].latency_ns if ranks[stage] != ranks[source] else 0
        return ends.get(together.get(made, made), 0) + delay

    known = {action for order in schedule.orders for action in order}
    ends: dict[Compute, int] = {}
    changed = True
    while changed:
        changed = False
        for order in schedule.orders:
            free = 0
            for action in order:
                arrived = 0 if action in after else arrival(action)
                if action in together:
                    arrived = max(arrived, arrival(together[action]))
                free = max(free, arrived) + costs[action.stage].of(action.kind)
                if ends.get(action) != free:
                    ends[action] = free
                    changed = True
    return ends


@given(costed())
def test_times_are_those_of_the_definition(case: Case) -> None:
    schedule, costs, links = case
    timeline = simulate(schedule, costs=costs, links=links)
    ends = {span.action: span.end_ns for span in timeline.spans if span.row is Row.COMPUTE}
    assert ends == relaxed(schedule, costs, links)


@given(costed())
def test_a_rank_keeps_its_order_and_its_time_is_work_or_waiting(case: Case) -> None:
    schedule, costs, links = case
    timeline = simulate(schedule, costs=costs, links=links)
    bubble = bubble_of(timeline)
    for rank in range(schedule.num_ranks):
        spans = [span for span in timeline.spans if span.rank == rank]
        assert tuple(s.action for s in spans if s.row is Row.COMPUTE) == schedule.order_of(Rank(rank))
        assert all(before.end_ns == after.start_ns for before, after in pairwise(spans))
        waited = sum(span.duration_ns for span in spans if span.row is Row.WAIT)
        assert bubble.span_ns[rank] == bubble.busy_ns[rank] + waited


@given(costed())
def test_no_schedule_beats_its_busiest_rank(case: Case) -> None:
    schedule, costs, links = case
    bubble = bubble_of(simulate(schedule, costs=costs, links=links))
    for rank, busy in enumerate(bubble.busy_ns):
        stages = schedule.placement.stages_of(Rank(rank))
        visits = Counter(action.stage for action in schedule.orders[rank] if action.kind is Kind.FORWARD)
        assert busy == sum(visits[stage] * costs[stage].total for stage in stages)
    assert max(bubble.busy_ns) == bubble.ideal_ns <= max(bubble.span_ns) <= bubble.makespan_ns


@given(costed())
def test_slower_links_never_help(case: Case) -> None:
    schedule, costs, links = case
    free = simulate(schedule, costs=costs)
    assert free.compute_end_ns <= simulate(schedule, costs=costs, links=links).compute_end_ns


@given(costed())
def test_the_same_input_gives_the_same_timeline(case: Case) -> None:
    schedule, costs, links = case
    assert simulate(schedule, costs=costs, links=links) == simulate(schedule, costs=costs, links=links)
