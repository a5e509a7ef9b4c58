from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.chrome import Step, chrome_trace
from fullbore.timeline.span import Activity, Row, Span, Timeline
from tests.support.perfetto import TraceProcessor, why_absent
from tests.support.timelines import measured, of_schedule
from tests.support.trace_lint import lint


def exported(*timelines: Timeline) -> str:
    steps = [Step(index, timeline) for index, timeline in enumerate(timelines)]
    return "".join(chrome_trace(steps, title="1f1b pipeline"))


def two_steps() -> str:
    return exported(measured(start_ns=10**15), measured(start_ns=10**15 + 40_000_003))


@pytest.mark.parametrize("trace", [two_steps(), exported(of_schedule()), exported(of_schedule("gpipe", ranks=3))])
def test_traces_keep_every_rule(trace: str) -> None:
    assert lint(trace) == []


def test_every_span_and_every_message_between_ranks_is_in_it() -> None:
    events = json.loads(two_steps())["traceEvents"]
    phases = [event["ph"] for event in events]
    assert phases.count("X") == 2 * len(measured().spans) + 2
    assert phases.count("s") == phases.count("f") == 2 * 2 * 3 * 8


def test_arrows_follow_the_stream_of_each_microbatch() -> None:
    """Microbatch 1 goes from stage 3 on rank 1 to stage 2 on rank 0; between stages 1 and 2 nothing goes."""
    schedule = get("chimera").build(2, num_microbatches=2)
    timeline = simulate(schedule, costs=[StageCost(1000, 1000, 0)] * 4)
    text = "".join(chrome_trace([Step(0, timeline, schedule.placement)], title="chimera"))
    assert lint(text) == []
    arrows = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "s"]
    assert sorted((event["tid"], event["name"]) for event in arrows) == [
        (1000, "activation"),
        (1000, "gradient"),
        (1010, "activation"),
        (1010, "gradient"),
    ]


def test_names_say_the_kind_first_and_the_microbatch_last() -> None:
    events = json.loads(exported(measured()))["traceEvents"]
    names = {re.sub(r" \d+$", "", event["name"]) for event in events if event["ph"] == "X"}
    assert names == {"F", "B", "R", "wait B", "gradient-norm", "optimizer", "step"}
    threads = [(event["tid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    assert threads[:6] == [
        (999, "steps"),
        (1000, "r00 compute"),
        (1001, "r00 nested"),
        (1002, "r00 wait"),
        (1003, "r00 flush"),
        (1010, "r01 compute"),
    ]


def test_times_start_at_zero_and_keep_the_last_nanosecond() -> None:
    assert exported(measured(start_ns=10**18 + 1)) == exported(measured())
    assert '"ts":1.234,"dur"' not in exported(measured())
    assert '"ts":1234.567,"dur"' in exported(measured())


def test_a_span_that_would_overlap_is_cut_rather_than_lost() -> None:
    spans = list(of_schedule(ranks=1, microbatches=2).spans)
    spans[0] = replace(spans[0], end_ns=spans[0].end_ns + 1)
    assert lint(exported(Timeline.of(spans, num_ranks=1))) == []


def test_an_arrow_against_time_is_left_out() -> None:
    """Clocks off by more than the gap between producer and consumer."""
    early = [
        replace(s, start_ns=s.start_ns - 9, end_ns=s.end_ns - 9) if s.rank == 1 else s for s in of_schedule().spans
    ]
    trace = exported(Timeline.of(early, num_ranks=4))
    assert lint(trace) == []
    assert trace.count('"ph":"s"') < 2 * 3 * 8


def test_a_step_that_begins_before_all_ranks_left_the_last_one_cuts_its_box_only() -> None:
    def span(rank: int, start: int, end: int) -> Span:
        return Span(Rank(rank), Row.FLUSH, None, Activity.OPTIMIZER, start, end)

    first = Timeline.of([span(0, 0, 10), span(1, 0, 30)], num_ranks=2)
    second = Timeline.of([span(0, 12, 20), span(1, 31, 40)], num_ranks=2)
    trace = exported(first, second)
    assert lint(trace) == []
    assert '"tid":999,"name":"step 0","ts":0.000,"dur":0.012}' in trace
    assert '"tid":1013,"name":"optimizer","ts":0.000,"dur":0.030,' in trace


def test_no_steps_are_an_empty_trace() -> None:
    assert lint(exported()) == []


def _edit(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Callable[[str], str]:
    def edited(trace: str) -> str:
        changed, count = re.subn(pattern, replacement, trace, count=1)
        assert count == 1
        return changed

    return edited


def _without_first_end(trace: str) -> str:
    lines = trace.split(",\n")
    lines.remove(next(line for line in lines if '"ph":"f"' in line))
    return ",\n".join(lines)


@pytest.mark.parametrize(
    ("rule", "mutation"),
    [
        ("nesting", _edit(r'("tid":1000,"name":"F 0","ts":0.000,"dur":1234.)567', r"\g<1>568")),
        ("flow: s 1 lies in no slice", _edit(r'("ph":"s".*"id":1,"tid":)\d+', r"\g<1>1003")),
        ("flow: id 2 has 2 starts", _edit(r'("ph":"s".*"id":)1,', r"\g<1>2,")),
        ("flow: id 1 has 1 starts and 0 ends", _without_first_end),
        ("does not bind", _edit(r',"bp":"e"', "")),
        ("changes its category or name", _edit(r'("ph":"s".*"name":)"activation"', r'\g<1>"gradient"')),
        ("monotone", _edit(r'(X.*"name":"F 0","ts":)0.000', r"\g<1>999999.000")),
        ("pid 0", _edit(r'"pid":1', '"pid":0')),
        ("is also a pid", _edit(r'"pid":1', '"pid":1000')),
        ("has no name", _edit(r'"tid":1000,"name":"thread_name"', '"tid":1009,"name":"thread_name"')),
    ],
)
def test_the_linter_sees_a_broken_rule(rule: str, mutation: Callable[[str], str]) -> None:
    found = lint(mutation(exported(measured())))
    assert any(rule in problem for problem in found), found


@pytest.mark.slow
@pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))
def test_perfetto_itself_loads_every_slice_and_binds_every_flow() -> None:
    with TraceProcessor(two_steps().encode()) as processor:
        assert processor.query("select count(*), sum(dur) from slice where name not like 'step%'") == [
            (2 * len(measured().spans), 2 * sum(span.duration_ns for span in measured().spans))
        ]
        assert processor.query("select count(*) from flow") == [(2 * 2 * 3 * 8,)]
        bad = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert processor.query(bad) == []
        crossing = (
            "select s.name, d.name from flow join slice s on flow.slice_out = s.id join slice d on flow.slice_in = d.id"
        )
        assert all(source == target for source, target in processor.query(crossing))


@pytest.mark.slow
@pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))
def test_perfetto_drops_what_the_linter_refuses() -> None:
    """The rule is not ours: one nanosecond of overlap costs an event there."""
    broken = _edit(r'("tid":1000,"name":"F 0","ts":0.000,"dur":1234.)567', r"\g<1>568")(exported(measured()))
    assert lint(broken)
    with TraceProcessor(broken.encode()) as processor:
        (kept,) = processor.query("select count(*) from slice")
        assert kept == (len(measured().spans) + 1 - 1,)


def test_waits_are_named_after_what_waited() -> None:
    waits = {span.label for span in of_schedule().spans if span.row is Row.WAIT}
    names = {e["args"]["action"] for e in json.loads(exported(of_schedule()))["traceEvents"] if e["name"][:4] == "wait"}
    assert names == waits
