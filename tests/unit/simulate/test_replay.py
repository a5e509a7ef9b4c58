from __future__ import annotations

from statistics import median

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError, InvalidSchedule
from fullbore.ir.placement import Placement
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.replay import measured_schedule, replay
from fullbore.timeline.shift import shifted
from fullbore.timeline.span import Timeline
from tests.support.published_traces import straggler_steps

SCHEDULE = get("1f1b").build(3, num_microbatches=5)
COSTS = [StageCost(3, 4, 1), StageCost(5, 2, 2), StageCost(1, 9, 3)]
LINKS = [Link(4), Link(7)]


def test_a_measured_step_replays_to_itself_with_its_own_links() -> None:
    step = simulate(SCHEDULE, costs=COSTS, links=LINKS)
    assert replay(shifted(step, by_ns=10**15), placement=SCHEDULE.placement, links=LINKS) == step


def test_without_communication_only_durations_and_order_remain() -> None:
    step = shifted(simulate(SCHEDULE, costs=COSTS, links=LINKS), by_ns=77)
    assert replay(step, placement=SCHEDULE.placement) == simulate(SCHEDULE, costs=COSTS)


def test_every_action_keeps_its_own_duration() -> None:
    """Microbatch 1 is long on one stage in one direction; nothing is averaged."""
    step = simulate(get("1f1b").build(2, num_microbatches=2), costs=[StageCost(1, 1, 0)] * 2)
    long = next(s for s in step.spans if str(s.action) == "1F1")
    spans = [
        type(s)(s.rank, s.row, s.action, s.activity, s.start_ns, s.end_ns + 5) if s == long else s for s in step.spans
    ]
    again = replay(Timeline.of(spans, num_ranks=2), placement=Placement.linear(2))
    assert again.compute_end_ns == step.compute_end_ns + 5


def test_the_order_is_the_measured_one() -> None:
    assert measured_schedule(simulate(SCHEDULE, costs=COSTS), placement=SCHEDULE.placement).orders == SCHEDULE.orders


def test_what_cannot_be_replayed_is_refused() -> None:
    step = simulate(SCHEDULE, costs=COSTS)
    twice = Timeline.of((*step.spans, *shifted(step, by_ns=1000).spans), num_ranks=3)
    with pytest.raises(InvalidSchedule, match="once"):
        replay(twice, placement=SCHEDULE.placement)
    cut = Timeline.of((s for s in step.spans if str(s.action) != "1F2"), num_ranks=3)
    with pytest.raises(InvalidSchedule, match="rank 2 at 2F2 waits for the activation of stage 1"):
        replay(cut, placement=SCHEDULE.placement)
    with pytest.raises(CostsError, match="one link for each of the 2 boundaries"):
        replay(step, placement=SCHEDULE.placement, links=[Link()])


@pytest.mark.parametrize(("name", "steps"), [("ST", 64), ("AR", 176)])
def test_published_production_traces_replay_within_a_third_of_a_percent(name: str, steps: int) -> None:
    """arXiv 2505.05713: 1F1B on p = 4, from the measured durations, without any communication."""
    errors = []
    for measured in straggler_steps(name):
        again = replay(measured.timeline, placement=Placement.linear(4))
        span = measured.timeline.compute_end_ns - measured.timeline.compute_start_ns
        errors.append(abs(again.compute_end_ns / span - 1))
    assert len(errors) == steps
    assert max(errors) < 0.003
    assert median(errors) > 0.001  # communication is there, and is left out
