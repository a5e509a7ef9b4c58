"""An emulated run over links of its own takes what the simulator says, with several boundaries on one lane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.report.run import predicted_timeline
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Row, Timeline
from fullbore.trace.reader import read_trace
from tests.support.command import fullbore

LINKS = [{"latency_ns": 30_000_000}, {"latency_ns": 1_000_000, "bytes_per_s": 4_000_000}, {}]


def test_the_pass_over_slow_links_is_the_simulated_one(tmp_path: Path) -> None:
    """Two ranks of two stages: boundaries 0 and 2 share a lane and differ by 30 ms. 40 kB at 4 MB/s are 10 ms."""
    layer = {"forward_ns": 5_000_000, "backward_input_ns": 5_000_000, "backward_weight_ns": 5_000_000}
    layers = [{"name": f"layers.{i}", **layer, "output_bytes": 40_000} for i in range(4)]
    costs, folder = tmp_path / "costs.json", tmp_path / "run"
    costs.write_text(json.dumps({"layers": layers, "links": LINKS}))
    sets = ["pipeline.schedule=interleaved-1f1b", "pipeline.microbatches=4", "train.steps=4", f"train.run_dir={folder}"]
    ran = fullbore("train", "--emulate", str(costs), *(part for pair in sets for part in ("--set", pair)), "--json")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    schedule = get("interleaved-1f1b").build(2, num_microbatches=4)
    stage = StageCost(5_000_000, 5_000_000, 5_000_000)
    links = [Link(30_000_000), Link(11_000_000), Link()]
    expected = bubble_of(simulate(schedule, costs=[stage] * 4, links=links)).makespan_ns
    assert answer["predicted_step_ns"] == expected
    predicted = predicted_timeline(folder)
    assert predicted is not None
    assert bubble_of(predicted).makespan_ns == expected
    trace = read_trace(folder)
    timelines = [trace.timeline(step) for step in trace.steps[1:]]
    assert min(bubble_of(timeline).makespan_ns for timeline in timelines) == pytest.approx(expected, rel=0.06)
    for boundary, link in enumerate(links):
        under_way = [gap for timeline in timelines for gap in gaps(timeline, boundary)]
        assert min(under_way) >= link.latency_ns - 2 * trace.clock_uncertainty_ns
        if link.latency_ns:
            assert min(under_way) < link.latency_ns + 3_000_000
    assert answer["slow_stage"] is None, "even stages behind slow links are not slow"


def gaps(timeline: Timeline, boundary: int) -> list[int]:
    """From the end of each message's producer to the start of its consumer, both directions."""
    spans = {str(span.action): span for rank in (0, 1) for span in timeline.on(rank, Row.COMPUTE)}
    pairs = ((f"{boundary}F", f"{boundary + 1}F"), (f"{boundary + 1}B", f"{boundary}B"))
    return [
        spans[f"{to}{microbatch}"].start_ns - spans[f"{source}{microbatch}"].end_ns
        for source, to in pairs
        for microbatch in range(4)
    ]


def test_both_streams_cross_the_same_links_with_the_sizes_of_their_own_cuts(tmp_path: Path) -> None:
    """Four ranks, chimera: what leaves layer 0 crosses link 0 downwards and link 2 upwards. 80 kB at 4 MB/s: 20 ms."""
    layer = {"forward_ns": 8_000_000, "backward_input_ns": 4_000_000, "backward_weight_ns": 4_000_000}
    sizes = (40_000, 80_000, 20_000, 0)
    layers = [{"name": f"layers.{i}", **layer, "output_bytes": size} for i, size in enumerate(sizes)]
    costs, folder = tmp_path / "costs.json", tmp_path / "run"
    slow = [{"latency_ns": 30_000_000}, {"latency_ns": 1_000_000, "bytes_per_s": 4_000_000}, {"bytes_per_s": 8_000_000}]
    costs.write_text(json.dumps({"layers": layers, "links": slow}))
    sets = ["pipeline.schedule=chimera", "pipeline.stages=4", "pipeline.microbatches=4", "train.steps=4"]
    sets.append(f"train.run_dir={folder}")
    ran = fullbore("train", "--emulate", str(costs), *(part for pair in sets for part in ("--set", pair)), "--json")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    down, up = (30_000_000, 21_000_000, 2_500_000), (30_000_000, 21_000_000, 5_000_000)
    links = [Link(delay) for delay in (*down, 0, *up)]
    schedule = get("chimera").build(4, num_microbatches=4)
    stage = StageCost(8_000_000, 4_000_000, 4_000_000)
    expected = bubble_of(simulate(schedule, costs=[stage] * 8, links=links)).makespan_ns
    assert answer["predicted_step_ns"] == expected
    predicted = predicted_timeline(folder)
    assert predicted is not None
    assert bubble_of(predicted).makespan_ns == expected
    trace = read_trace(folder)
    timelines = [trace.timeline(step) for step in trace.steps[1:]]
    assert min(bubble_of(timeline).makespan_ns for timeline in timelines) == pytest.approx(expected, rel=0.06)
    assert answer["slow_stage"] is None
