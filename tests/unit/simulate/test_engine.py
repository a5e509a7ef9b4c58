from __future__ import annotations

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.costs.unit import parse_unit_costs
from fullbore.errors import CostsError, InvalidSchedule
from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Activity, Row, Span
from tests.timetable import equal_costs, rows, schedule_of, timetable

TWO = one_forward_one_backward(2, num_microbatches=2)


def test_a_link_delays_the_receiver_and_never_the_sender() -> None:
    timeline = simulate(TWO, costs=equal_costs(2), links=[Link(latency_ns=2)])
    expected = """
        0 1 . . .  . .  0' . 1'
        . . . 0 0' 1 1' .  . .
    """
    assert timetable(timeline) == rows(expected)


def test_size_and_bandwidth_make_the_delay() -> None:
    link = Link(latency_ns=1, bytes_per_s=2_000_000_000)
    for message_bytes in (6, [6]):
        timeline = simulate(TWO, costs=equal_costs(2), links=[link], message_bytes=message_bytes)
        assert timeline.on(1, Row.COMPUTE)[0].start_ns == 1 + 1 + 3


def test_a_boundary_within_one_rank_costs_nothing() -> None:
    snake = schedule_of([0, 1, 1, 0], ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"], num_microbatches=1)
    timeline = simulate(snake, costs=equal_costs(4), links=[Link(1), Link(100), Link(1)])
    assert timetable(timeline) == rows("""
        0 .  . . .  0 0' .  .  . . 0'
        . .  0 0 .  . .  .  0' 0' . .
    """)


def test_boundaries_have_their_own_links_in_both_directions() -> None:
    timeline = simulate(one_forward_one_backward(3, num_microbatches=1), costs=equal_costs(3), links=[Link(1), Link(3)])
    starts = [[span.start_ns for span in timeline.on(rank, Row.COMPUTE)] for rank in range(3)]
    assert starts == [[0, 13], [2, 11], [6, 7]]


def test_waits_lie_between_two_actions_of_a_rank() -> None:
    timeline = simulate(TWO, costs=[StageCost(1, 1, 0), StageCost(3, 2, 0)])
    assert timeline.on(0, Row.WAIT) == (
        Span(Rank(0), Row.WAIT, Compute.parse("0B0"), Activity.RECV_WAIT, 2, 6),
        Span(Rank(0), Row.WAIT, Compute.parse("0B1"), Activity.RECV_WAIT, 7, 11),
    )
    assert timeline.on(1, Row.WAIT) == ()


def test_the_halves_of_a_split_backward_have_their_own_times() -> None:
    split = schedule_of([0, 1], ["0F0 0I0 0W0", "1F0 1I0 1W0"], num_microbatches=1)
    timeline = simulate(split, costs=[StageCost(1, 2, 3)] * 2)
    assert timetable(timeline) == rows("""
        0 . .  .  0' 0' 0w 0w 0w
        . 0 0' 0' 0w 0w 0w .  .
    """)


def test_spans_are_sorted_by_time_and_rank() -> None:
    spans = simulate(get("gpipe").build(4, num_microbatches=4), costs=equal_costs(4)).spans
    keys = [(span.start_ns, span.rank) for span in spans]
    assert keys == sorted(keys)


def test_a_schedule_that_stalls_is_refused() -> None:
    bad = schedule_of([0, 1], ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"], num_microbatches=2, name="stuck")
    with pytest.raises(InvalidSchedule, match=r"'stuck' stalls: rank 0 at 0B0 waits .*; rank 1 at 1F1 waits") as raised:
        simulate(bad, costs=equal_costs(2))
    assert raised.value.rules == ("no-cycle",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"costs": equal_costs(3)}, r"one cost for each of the 2 stages \(given 3\)"),
        ({"costs": equal_costs(2), "links": [Link(), Link()]}, r"one link for each of the 1 boundaries \(given 2\)"),
        ({"costs": equal_costs(2), "message_bytes": []}, r"one message size for each of the 1 boundaries \(given 0\)"),
    ],
)
def test_counts_are_checked(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(CostsError, match=message):
        simulate(TWO, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b"])
@pytest.mark.parametrize(("num_ranks", "num_microbatches", "fraction"), [(2, 1, 1 / 2), (4, 2, 3 / 5)])
def test_fewer_microbatches_than_ranks(name: str, num_ranks: int, num_microbatches: int, fraction: float) -> None:
    """The step is (m + p - 1)(F + B) also where the steady phase is empty."""
    schedule = get(name).build(num_ranks, num_microbatches=num_microbatches)
    bubble = bubble_of(simulate(schedule, costs=equal_costs(num_ranks, forward=3, backward_input=5)))
    assert bubble.makespan_ns == (num_microbatches + num_ranks - 1) * 8
    assert bubble.bubble_fraction == fraction


def test_imbalance_is_a_loss_of_its_own() -> None:
    """A stage that takes three times as long is multiplied by m; 9 of 39 are imbalance, not schedule."""
    schedule = one_forward_one_backward(2, num_microbatches=4)
    uneven = bubble_of(simulate(schedule, costs=[StageCost(1, 2, 0), StageCost(3, 6, 0)]))
    even = bubble_of(simulate(schedule, costs=[StageCost(2, 4, 0)] * 2))
    assert (uneven.makespan_ns, even.makespan_ns) == (39, 30)
    assert [round(share * 100, 1) for share in uneven.idle_fraction] == [69.2, 7.7]
    assert even.bubble_fraction == 0.2


def test_one_slow_stage_of_four() -> None:
    """The last of four stages twice as slow; times in quarters so that the balanced case is whole."""
    schedule = one_forward_one_backward(4, num_microbatches=8)
    uneven = simulate(schedule, costs=[StageCost(4, 8, 0)] * 3 + [StageCost(8, 16, 0)])
    even = simulate(schedule, costs=[StageCost(5, 10, 0)] * 4)
    assert bubble_of(uneven).makespan_ns / 4 == 57
    assert bubble_of(even).makespan_ns / 4 == 41.25


ROWS = [
    (24, 18522, 18086, 9337, 601, 0.2431),
    (32, 18513, 18086, 9331, 626, 0.1985),
    (64, 18546, 18097, 9321, 762, 0.1240),
    (24, 29718, 29444, 19927, 527, 0.2347),
    (32, 29802, 29428, 19530, 577, 0.1898),
    (64, 29935, 29621, 19388, 535, 0.1091),
]


@pytest.mark.parametrize(("num_microbatches", "f", "b", "w", "c", "expected"), ROWS)
def test_published_costs_of_1f1b(num_microbatches: int, f: int, b: int, w: int, c: int, expected: float) -> None:
    """Profiled costs (microseconds, p = 8) of Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241."""
    schedule = one_forward_one_backward(8, num_microbatches=num_microbatches)
    timeline = simulate(schedule, costs=[StageCost(f, b, w)] * 8, links=[Link(latency_ns=c)] * 7)
    assert f"{bubble_of(timeline).bubble_fraction:.4f}" == f"{expected:.4f}"
    if num_microbatches == 24 and f == 18522:
        assert bubble_of(timeline).makespan_ns == 1_456_749


INTERLEAVED = [
    (24, 18522, 18086, 9337, 601, 3, 0.1090),
    (32, 18513, 18086, 9331, 626, 3, 0.0847),
    (64, 18546, 18097, 9321, 762, 3, 0.0461),
    (24, 29718, 29444, 19927, 527, 4, 0.0827),
    (32, 29802, 29428, 19530, 577, 4, 0.0644),
    (64, 29935, 29621, 19388, 535, 4, 0.0328),
]


@pytest.mark.parametrize(("num_microbatches", "f", "b", "w", "c", "v", "expected"), INTERLEAVED)
def test_published_costs_of_interleaved_1f1b(
    num_microbatches: int, f: int, b: int, w: int, c: int, v: int, expected: float
) -> None:
    """The same costs with one layer a stage (v = layers / p): a stage takes a v-th, a transfer as long as before.

    Times are in v-ths of a microsecond. The paper's own script gives a little less: there a chunk waits for the chunk
    before it only with the first microbatch of each group.
    """
    schedule = get("interleaved-1f1b").build(8, num_microbatches=num_microbatches, num_chunks=v)
    links = [Link(latency_ns=c * v)] * (schedule.num_stages - 1)
    bubble = bubble_of(simulate(schedule, costs=[StageCost(f, b, w)] * schedule.num_stages, links=links))
    assert f"{bubble.bubble_fraction:.4f}" == f"{expected:.4f}"


GOLDEN = [
    ("gpipe", 4, 8, 33, 0.2727, 8),
    ("gpipe", 4, 16, 57, 0.1579, 16),
    ("gpipe", 8, 32, 117, 0.1795, 32),
    ("1f1b", 4, 8, 33, 0.2727, 4),
    ("1f1b", 4, 16, 57, 0.1579, 4),
    ("1f1b", 8, 32, 117, 0.1795, 8),
    ("eager-1f1b", 4, 8, 33, 0.2727, 7),
    ("eager-1f1b", 4, 16, 57, 0.1579, 7),
    ("eager-1f1b", 8, 32, 117, 0.1795, 15),
    ("interleaved-1f1b -v 2", 4, 8, 28.5, 0.1579, 5.5),
    ("interleaved-1f1b -v 2", 4, 16, 52.5, 0.0857, 5.5),
    ("interleaved-1f1b -v 2", 8, 32, 106.5, 0.0986, 11.5),
    ("interleaved-1f1b -v 4", 4, 8, 26.25, 0.0857, 4.75),
    ("interleaved-1f1b -v 4", 4, 16, 50.25, 0.0448, 4.75),
    ("interleaved-1f1b -v 4", 8, 32, 101.25, 0.0519, 9.75),
    ("looped-bfs -v 2", 4, 8, 28.5, 0.1579, 8),
    ("looped-bfs -v 2", 4, 16, 52.5, 0.0857, 16),
    ("looped-bfs -v 2", 8, 32, 106.5, 0.0986, 32),
]
"""Makespan where T = 3, bubble fraction, and the most shares that a rank keeps."""


@pytest.mark.parametrize(("name", "num_ranks", "num_microbatches", "makespan", "fraction", "peak"), GOLDEN)
@pytest.mark.parametrize("cost", ["1,1,1", "1,2,0"])
def test_worked_values(
    name: str, num_ranks: int, num_microbatches: int, makespan: float, fraction: float, peak: float, cost: str
) -> None:
    name, _, chunks = name.partition(" -v ")
    schedule = get(name).build(num_ranks, num_microbatches=num_microbatches, num_chunks=int(chunks or 1))
    units = parse_unit_costs(cost, num_ranks=num_ranks, num_chunks=int(chunks or 1))
    bubble = bubble_of(simulate(schedule, costs=units.of(schedule.placement)))
    assert units.units(bubble.makespan_ns) == makespan
    assert round(bubble.bubble_fraction, 4) == fraction
    assert round(bubble.span_bubble_fraction, 4) == fraction
    assert max(peak_activations(schedule)) / int(chunks or 1) == peak


LATENCY = [
    ("1f1b", {}, [57, 64, 71, 85, 113]),
    ("1f1b", {"extra_warmup": 1}, [57, 58.5, 60, 63, 75]),
    ("1f1b", {"extra_warmup": 2}, [57, 58.5, 60, 63, 69]),
    ("eager-1f1b", {}, [57, 58.5, 60, 63, 75]),
    ("gpipe", {}, [57, 58.5, 60, 63, 69]),
    ("interleaved-1f1b", {}, [52.5, 56, 59.5, 75.5, 113.5]),
    ("interleaved-1f1b", {"extra_warmup": 1}, [52.5, 56, 59.5, 75, 111.5]),
    ("interleaved-1f1b", {"group_size": 8}, [52.5, 54, 55.5, 65, 97]),
    ("interleaved-1f1b", {"group_size": 16}, [52.5, 54, 55.5, 61.5, 81.5]),
    ("looped-bfs", {}, [52.5, 54, 55.5, 58.5, 66.5]),
]


@pytest.mark.parametrize(("name", "options", "makespans"), LATENCY)
def test_what_hides_transfers(name: str, options: dict[str, int], makespans: list[float]) -> None:
    """The tables of docs/schedules: p = 4, m = 16, F = B = W = 1, transfers of 0, 1/4, 1/2, 1 and 2."""
    schedule = get(name).build(4, num_microbatches=16, options=options)
    for comm, expected in zip(("0", "0.25", "0.5", "1", "2"), makespans, strict=True):
        units = parse_unit_costs("1,1,1", num_ranks=4, num_chunks=get(name).chunks, comm=comm)
        timeline = simulate(schedule, costs=units.of(schedule.placement), links=units.links)
        assert units.units(bubble_of(timeline).makespan_ns) == expected
