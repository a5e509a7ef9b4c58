"""Write, read back, and everything that can be wrong with the files in between."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fullbore.errors import TraceError
from fullbore.ir.placement import Placement
from fullbore.timeline.clock import ClockOffset
from fullbore.timeline.instrument import Instrument
from fullbore.timeline.shift import shifted
from fullbore.timeline.span import Timeline
from fullbore.trace.format import trace_path
from fullbore.trace.reader import median_step, read_trace, warm_steps
from fullbore.trace.writer import TraceWriter
from tests.support.timelines import measured

PLACEMENT = Placement.linear(2)
SKEW = (0, 5_000_000_123)
"""What each rank's clock shows more than rank 0's."""


def write(
    run_dir: Path,
    steps: Sequence[Timeline],
    *,
    skew: Sequence[int] = SKEW,
    first_step: int = 0,
    clocks: Sequence[ClockOffset | None] | None = None,
) -> None:
    for rank in range(2):
        clock = clocks[rank] if clocks else ClockOffset(-skew[rank], 40 * rank)
        with TraceWriter(run_dir, rank=rank, placement=PLACEMENT, schedule="1f1b", clock=clock) as writer:
            for index, step in enumerate(steps):
                for span in shifted(step, by_ns=skew[rank]).spans:
                    if span.rank == rank:
                        writer.record(span)
                writer.step_ended(first_step + index)


def steps_of(*starts: int) -> list[Timeline]:
    return [measured(ranks=2, microbatches=3, start_ns=start) for start in starts]


def test_a_writer_is_an_instrument(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, rank=0, placement=PLACEMENT, schedule="1f1b", clock=None) as writer:
        instrument: Instrument = writer
        instrument.step_ended(0)


def test_what_was_written_is_read_back_on_rank_zeros_clock(tmp_path: Path) -> None:
    steps = steps_of(10**12, 2 * 10**12)
    write(tmp_path, steps)
    trace = read_trace(tmp_path)
    assert (trace.steps, trace.schedule, trace.num_ranks) == ((0, 1), "1f1b", 2)
    assert trace.clock_uncertainty_ns == 40
    assert [trace.timeline(step) for step in trace.steps] == steps


def test_stages_in_both_directions_are_said_in_the_header(tmp_path: Path) -> None:
    for placement, said in ((Placement.bidirectional(2), 2), (Placement.loop(2, num_chunks=2), None)):
        folder = tmp_path / str(said)
        for rank in range(2):
            clock = ClockOffset(0, 0)
            with TraceWriter(folder, rank=rank, placement=placement, schedule="x", clock=clock) as writer:
                writer.step_ended(0)
        header = json.loads(trace_path(folder, rank=0).read_text(encoding="utf-8").splitlines()[0])
        assert header.get("streams") == said
        assert read_trace(folder).placement == placement


def test_a_second_measurement_mends_the_drift(tmp_path: Path) -> None:
    """Rank 1's clock gains 600 ns over the run; at the ends the spans come out exactly."""
    (step,) = steps_of(0)
    write(tmp_path, [step])
    path = trace_path(tmp_path, rank=1)
    with TraceWriter(tmp_path / "two", rank=1, placement=PLACEMENT, schedule="1f1b", clock=None) as writer:
        writer.measured_again(ClockOffset(-SKEW[1] - 600, 70))
        closing = writer.path.read_text().splitlines()[1]
    path.write_text(path.read_text() + closing + "\n")
    aligned = [span for span in read_trace(tmp_path).timeline(0).spans if span.rank == 1]
    expected = [span for span in step.spans if span.rank == 1]
    assert aligned[0].start_ns == expected[0].start_ns
    assert max(span.end_ns for span in aligned) == max(span.end_ns for span in expected) - 600
    assert read_trace(tmp_path).clock_uncertainty_ns == 70


def test_the_file_is_small_lines_with_short_rows(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0))
    header, step = map(json.loads, trace_path(tmp_path, rank=0).read_text().splitlines())
    assert header == {
        "fullbore_trace": 1,
        "rank": 0,
        "num_ranks": 2,
        "placement": [0, 1],
        "schedule": "1f1b",
        "clock": {"offset_ns": 0, "uncertainty_ns": 0, "at_ns": None},
    }
    assert step["spans"][0] == ["compute", "0F0", None, 0, 1_234_567]


def test_every_step_is_on_disk_when_it_ends(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, rank=0, placement=Placement.linear(1), schedule="1f1b", clock=None)
    writer.step_ended(0)
    assert read_trace(tmp_path).steps == (0,)
    writer.close()
    writer.close()


def test_a_crash_in_the_middle_of_a_line_loses_that_step_only(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0, 10**9))
    path = trace_path(tmp_path, rank=1)
    path.write_text(path.read_text()[:-40])
    assert read_trace(tmp_path).steps == (0,)


def test_a_resumed_run_appends_and_has_its_own_clocks(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0, 10**9))
    path = trace_path(tmp_path, rank=1)
    path.write_text(path.read_text()[:-40])
    again = steps_of(7 * 10**9, 8 * 10**9)
    write(tmp_path, again, skew=(0, -123_456), first_step=1)
    trace = read_trace(tmp_path)
    assert trace.steps == (0, 1, 2)
    assert [trace.timeline(step) for step in (1, 2)] == again


def test_a_step_that_ranks_recorded_in_different_lives_is_not_one_step(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0, 10**9))
    with TraceWriter(tmp_path, rank=0, placement=PLACEMENT, schedule="1f1b", clock=ClockOffset(0, 0)) as writer:
        writer.step_ended(1)
    assert read_trace(tmp_path).steps == (0,)


def test_a_rank_without_calibration_is_refused(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0), clocks=[None, None])
    with pytest.raises(TraceError, match="rank 1 has no clock calibration"):
        read_trace(tmp_path)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0))
    trace_path(tmp_path, rank=1).unlink()
    with pytest.raises(TraceError, match=r"trace of rank 1 is missing .*rank-0001\.jsonl.*all ranks"):
        read_trace(tmp_path)


def test_a_folder_without_a_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"has no trace: .* give the folder of a traced run"):
        read_trace(tmp_path)


def test_a_device_and_a_trace_without_end_are_not_read(tmp_path: Path) -> None:
    path = trace_path(tmp_path, rank=0)
    path.parent.mkdir()
    path.symlink_to("/dev/zero")
    with pytest.raises(TraceError, match=r"cannot read the trace .*rank-0000\.jsonl: it is a device and not a file"):
        read_trace(tmp_path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate((4 << 30) + 1)
    with pytest.raises(TraceError, match=r"cannot read the trace .*rank-0000\.jsonl: it is larger than 4096 MiB"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, '{"fullbore_trace": 2}', r"traces of version 1 .*line 1: 2\)"),
        (0, '{"step": 0, "spans": []}', "begins with a header line"),
        (0, '{"fullbore_trace": 1, "rank": 5}', "the file of rank 0 says it is of rank 5"),
        (0, "nonsense", r"one JSON document .*rank-0000\.jsonl, line 1"),
        (0, '{"hello": 1}', "a header, a step or a closing clock"),
    ],
)
def test_a_broken_file_says_where(tmp_path: Path, line: int, text: str, message: str) -> None:
    write(tmp_path, steps_of(0))
    path = trace_path(tmp_path, rank=0)
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match=message):
        read_trace(tmp_path)


def test_a_broken_span_says_what_a_span_is(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0))
    path = trace_path(tmp_path, rank=0)
    path.write_text(path.read_text().replace('"0F0"', '"0Q0"', 1))
    with pytest.raises(TraceError, match=r"a span is \[row, action, activity, start, end\] .*0Q0"):
        read_trace(tmp_path).timeline(0)


def test_an_unknown_step_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, steps_of(0, 10**9))
    with pytest.raises(TraceError, match=r"no step 7 .* \(it has 0 to 1\)"):
        read_trace(tmp_path).timeline(7)


def test_opening_in_an_unwritable_place_fails_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("a file, not a folder")
    with pytest.raises(TraceError, match=r"needs a writable run folder: cannot write .*choose another run folder"):
        TraceWriter(tmp_path, rank=0, placement=PLACEMENT, schedule="1f1b", clock=None)


def test_a_full_disk_is_one_message_at_opening() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fullbore.trace.writer.trace_path", lambda run_dir, *, rank: full)
        with pytest.raises(TraceError, match=r"No space left on device.*free some space"):
            TraceWriter(Path(), rank=0, placement=PLACEMENT, schedule="1f1b", clock=None)


def test_a_disk_that_fills_up_later_stops_the_trace_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TraceWriter(tmp_path, rank=0, placement=Placement.linear(1), schedule="1f1b", clock=None)
    writer.step_ended(0)

    def full(document: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fullbore.trace.writer._line", full)
    writer.step_ended(1)
    writer.step_ended(2)
    assert writer.problem is not None
    assert "the trace stops early: cannot write" in writer.problem
    assert read_trace(tmp_path).steps == (0,)


def test_the_median_step_is_one_of_those_that_count(tmp_path: Path) -> None:
    """Makespans in ms: 90, then 10 30 20 40, of which the lower median is 20, step 3; of the last two it is step 3 too,
    and of the two before them step 1."""
    durations = (90, 10, 30, 20, 40)
    steps = [measured(ranks=2, microbatches=1, forwards=[d * 10**5, d * 10**5]) for d in durations]
    write(tmp_path, steps)
    trace = read_trace(tmp_path)
    assert [median_step(trace, among=among) for among in ((1, 2, 3, 4), (3, 4), (1, 2))] == [3, 3, 1]


@pytest.mark.parametrize(
    ("num_steps", "last", "counted"),
    [(1, 20, (0,)), (2, 20, (1,)), (5, 20, (1, 2, 3, 4)), (5, 2, (3, 4)), (3, 3, (1, 2))],
)
def test_the_first_step_warms_up(num_steps: int, last: int, counted: tuple[int, ...], tmp_path: Path) -> None:
    write(tmp_path, [measured(ranks=2, microbatches=1)] * num_steps)
    assert warm_steps(read_trace(tmp_path), last=last) == counted


def test_of_a_run_that_finished_no_step_none_counts(tmp_path: Path) -> None:
    write(tmp_path, [])
    with pytest.raises(TraceError, match="no step that all ranks finished"):
        warm_steps(read_trace(tmp_path), last=20)
