from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.errors import InvalidSchedule, ScheduleError
from fullbore.ir.explicit import ExplicitSchedule
from fullbore.ir.forward_only import forward_only
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import open_schedule_file, parse_schedule_file, read_schedule_file
from fullbore.ir.torch_csv import parse_torch_csv
from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.torch_write import format_torch_csv
from fullbore.ir.validate import Rule, problems
from fullbore.schedules.gpipe import gpipe
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward
from tests.timetable import schedule_of

LOWERED = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\r\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\r\n"
)


def parsed(text: str) -> Schedule | ExplicitSchedule:
    return parse_torch_csv(text, name="file", where="x.csv").schedule


def test_a_compute_only_file_and_its_text() -> None:
    schedule = one_forward_one_backward(2, num_microbatches=2)
    text = format_torch_csv(schedule)
    assert text == "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n"
    assert parse_torch_csv(text, name="1f1b", where="x").schedule == schedule


def test_communication_and_the_reduction_of_gradients() -> None:
    explicit = with_transfers(one_forward_one_backward(2, num_microbatches=2))
    assert format_torch_csv(explicit) == LOWERED
    found = parse_torch_csv(LOWERED, name="1f1b", where="x")
    assert found.schedule == explicit
    assert found.notes == ("dropped 2 REDUCE_GRAD: the runtime derives them",)


def test_blanks_quotes_empty_cells_and_what_sharding_needs() -> None:
    found = parse_torch_csv(
        '0UNSHARD, 0F0 ,,"0B0",0REDUCE_GRAD,0RESHARD\n,1UNSHARD,1F0,1B0\n', name="file", where="x.csv"
    )
    assert found.schedule == schedule_of([0, 1], ["0F0 0B0", "1F0 1B0"], num_microbatches=1, name="file")
    assert found.columns == ((2, 4), (3, 4))
    assert found.notes == (
        "dropped 2 empty cells: idle time follows from the order and the costs",
        "dropped 2 UNSHARD, 1 RESHARD, 1 REDUCE_GRAD: the runtime derives them",
    )


def test_the_placement_follows_from_the_rows() -> None:
    schedule = parsed("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    assert schedule.placement == Placement.snake(2, num_chunks=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n1F0abc,1B0\n", r"x.csv, row 2, column 1: a cell is .* \(given '1F0abc'\)"),
        ("0F0,0B0\n1F0,1B\n", r"row 2, column 2: .* \(given '1B'\)"),
        ("0F0,0R0,0B0\n", r"row 1, column 2: .* \(given '0R0'\)"),
        ("00F0,0B0\n", r"row 1, column 1"),
        ("0F0,0SEND0\n", r"column 2"),
        ("0F0,0UNSHARD0\n", r"column 2"),
        ("٠F0,0B0\n", r"column 1"),
        ("0F0,0f0\n", r"column 2"),
        ("0F0;0B0\n", r"column 1"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B\n", r"column 2: what overlaps are a forward and a backward"),
        ("0F0,(0F1;0B0;0W0)OVERLAP_F_B\n", r"column 2: a cell is stage, kind, .*as in \(0F3;3B1\)OVERLAP_F_B"),
        ("0F0,(0F1;0B)OVERLAP_F_B\n", r"column 2: a cell is stage, .*given '0B'"),
        ("0F0,0B0,0REDUCE_GRAD,0F1,0B1\n", r"column 5: 0B1 comes after 0REDUCE_GRAD"),
        ("", r"x.csv is empty"),
        ("0F0,0B0\n\n", r"row 2 is empty"),
        (",,\n0F0,0B0\n", r"row 1 is empty"),
        ('0F0,"0B0\n', r"x.csv is not a CSV"),
        ("0F0,0SEND_F0,,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", r"has no empty cells \(given 1\)"),
        ("0F0,0B0\n2F0,2B0\n", r"stages are 0, 1, 2, ... without a gap, .* \(stage 1 is in no row\)"),
        ("0F0,0B0\n0F1,0B1\n", r"rows without a stage of their own: 2"),
        ("999999999F0,0B0\n9999999999F0\n", r"row 2, column 1"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("0F0,0B0,0B1\n1F0,1F1,1B0,1B1\n", [(Rule.COMPLETE, 0, None, "0F1")]),
        ("0F0,0F1,0B0,0B1,0F5\n1F0,1F1,1B0,1B1\n", [(Rule.KNOWN_MICROBATCH, 0, 4, "0F5")]),
        ("0F0,0B0,1F0\n1F0,1B0\n", [(Rule.OWN_STAGE, 0, 2, "1F0"), (Rule.ONCE, 1, 0, "1F0")]),
        ("0F0,0B0,7F0\n1F0,1B0\n", [(Rule.KNOWN_STAGE, 0, 2, "7F0")]),
    ],
)
def test_one_wrong_cell_does_not_change_the_sizes(text: str, places: list[tuple[Rule, int, int | None, str]]) -> None:
    schedule = parsed(text)
    assert isinstance(schedule, Schedule)
    assert [(p.rule, p.rank, p.position, str(p.action)) for p in problems(schedule)] == places


def test_what_pytorch_could_not_run_is_not_written() -> None:
    with pytest.raises(ScheduleError, match="'forward-only' has no backward"):
        format_torch_csv(forward_only(Placement.linear(2), num_microbatches=2))
    with pytest.raises(ScheduleError, match=r"no action for a recomputation \(given 0R0\)"):
        format_torch_csv(schedule_of([0], ["0F0 0R0 0B0"], num_microbatches=1))
    with pytest.raises(ScheduleError, match=r"must be 0, 1, 2, ... \(given 1F1 in place 0\)"):
        format_torch_csv(schedule_of([0, 1], ["0F0 0F1 0B1 0B0", "1F1 1F0 1B1 1B0"], num_microbatches=2))
    with pytest.raises(ScheduleError, match="'two' has streams in two"):
        format_torch_csv(Schedule("two", Placement.bidirectional(2), 1, ((), ())))
    with pytest.raises(InvalidSchedule, match="0B0 is missing"):
        format_torch_csv(schedule_of([0], ["0F0 0F1 0B1"], num_microbatches=2))


def test_a_file_is_recognised_by_its_first_words(tmp_path: Path) -> None:
    path = tmp_path / "my  order.csv"
    path.write_bytes(LOWERED.encode())
    explicit = read_schedule_file(path)
    assert (type(explicit), explicit.name) == (ExplicitSchedule, "my order")
    text = "fullbore schedule 1\nname x\nplacement 0\nmicrobatches 1\nrank 0: 0F0 0B0\n"
    assert parse_schedule_file(text, name="other", where="x.txt").schedule.name == "x"
    with pytest.raises(ScheduleError, match=r"^x.txt: line 5"):
        parse_schedule_file(text.replace("rank 0", "rank 1"), name="x", where="x.txt")
    assert open_schedule_file(path).form == "PyTorch CSV with communication"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"cannot read the schedule .*none.csv: No such file"):
        read_schedule_file(tmp_path / "none.csv")
    with pytest.raises(ScheduleError, match=r"cannot read the schedule .*: Is a directory"):
        read_schedule_file(tmp_path)
    path = tmp_path / "binary.csv"
    path.write_bytes(b"0F0,\xff")
    with pytest.raises(ScheduleError, match=r"binary.csv is not text: .* at byte 4"):
        read_schedule_file(path)


def test_every_row_of_a_reduction_ends_a_stage() -> None:
    text = format_torch_csv(with_transfers(gpipe(3, num_microbatches=2)))
    assert [row.split(",")[-1] for row in text.split()] == ["0REDUCE_GRAD", "1REDUCE_GRAD", "2REDUCE_GRAD"]
