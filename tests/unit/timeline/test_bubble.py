from __future__ import annotations

from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.timeline.bubble import Bubble, bubble_of
from fullbore.timeline.span import Activity, Row, Span, Timeline


def compute(rank: int, start: int, end: int) -> Span:
    return Span(Rank(rank), Row.COMPUTE, Compute.parse("0F0"), None, start, end)


def test_idle_is_counted_between_first_start_and_last_end_over_all_ranks() -> None:
    timeline = Timeline.of(
        [compute(0, 10, 14), compute(0, 16, 20), compute(1, 14, 20), compute(1, 22, 26)], num_ranks=2
    )
    bubble = bubble_of(timeline)
    assert bubble == Bubble(makespan_ns=16, busy_ns=(8, 10), span_ns=(10, 12))
    assert bubble.ideal_ns == 10
    assert bubble.idle_ns == (8, 6)
    assert bubble.idle_fraction == (0.5, 0.375)
    assert bubble.bubble_fraction == 0.375
    assert bubble.bubble_overhead == 0.6
    assert bubble.span_bubble_fraction == 2 / 12


def test_waits_flush_and_nested_work_are_not_work() -> None:
    others = [
        Span(Rank(0), Row.WAIT, Compute.parse("0B0"), Activity.RECV_WAIT, 4, 6),
        Span(Rank(0), Row.FLUSH, None, Activity.OPTIMIZER, 10, 50),
        Span(Rank(0), Row.NESTED, Compute.parse("0R0"), None, 6, 8),
    ]
    assert bubble_of(Timeline.of([compute(0, 0, 4), compute(0, 6, 10), *others], num_ranks=1)) == Bubble(
        10, (8,), (10,)
    )


def test_a_rank_without_work_is_idle_all_the_time() -> None:
    bubble = bubble_of(Timeline.of([compute(0, 5, 9)], num_ranks=2))
    assert bubble.idle_ns == (0, 4)
    assert bubble.idle_fraction == (0, 1)


def test_no_time_at_all_is_no_bubble() -> None:
    for bubble in (bubble_of(Timeline.of([], num_ranks=2)), bubble_of(Timeline.of([compute(0, 3, 3)], num_ranks=2))):
        assert (bubble.bubble_fraction, bubble.bubble_overhead, bubble.span_bubble_fraction) == (0, 0, 0)


def test_overhead_may_exceed_one_and_fraction_may_not() -> None:
    bubble = Bubble(makespan_ns=40, busy_ns=(10, 10), span_ns=(40, 10))
    assert (bubble.bubble_fraction, bubble.bubble_overhead) == (0.75, 3.0)
