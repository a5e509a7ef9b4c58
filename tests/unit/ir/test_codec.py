from __future__ import annotations

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.codec import format_schedule, parse_schedule
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward
from tests.timetable import schedule_of

TEXT = """\
fullbore schedule 1
name 1f1b
placement 0 1
microbatches 2
rank 0: 0F0 0F1 0B0 0B1
rank 1: 1F0 1B0 1F1 1B1
"""


def test_a_schedule_as_text() -> None:
    assert format_schedule(one_forward_one_backward(2, num_microbatches=2)) == TEXT


def test_parsing_is_the_inverse() -> None:
    assert parse_schedule(TEXT) == one_forward_one_backward(2, num_microbatches=2)
    assert format_schedule(parse_schedule(TEXT)) == TEXT


def test_a_rank_without_actions_round_trips() -> None:
    empty = schedule_of([0, 1], ["0F0", ""], num_microbatches=1, name="two words")
    assert parse_schedule(format_schedule(empty)) == empty


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schedule 1", "schedule 2", r"line 1 of a fullbore schedule is 'fullbore schedule 1'"),
        ("name 1f1b", "nom 1f1b", r"line 2 starts with 'name '"),
        ("name 1f1b", "name  1f1b", r"line 2: a name is printable words with single spaces"),
        ("placement 0 1", "placement 0  1", r"line 3: a number is digits only"),
        ("placement 0 1", "placement 0 -1", r"line 3: a number is digits only"),
        ("placement 0 1", "placement 0 2", r"ranks without one: \[1\]"),
        ("microbatches 2", "microbatches 02", r"line 4: a number is digits only, without leading zeros"),
        ("rank 1:", "rank 2:", r"line 6 starts with 'rank 1:'"),
        ("rank 1: 1F0", "rank 1:1F0", r"line 6: actions are separated by single spaces"),
        ("1F1 1B1", "1F1 1X1", r"line 6, action 3: an action is written .* \(given '1X1'\)"),
        ("1F1 1B1", "1F1  1B1", r"line 6, action 3: .*given ''"),
        ("1F1 1B1\n", "1F1 1B1", r"ends with a newline \(line 6 does not\)"),
        ("rank 1: 1F0 1B0 1F1 1B1\n", "", r"has 2 ranks, the text 1 orders"),
        ("1F1 1B1\n", "1F1 1B1\n\n", r"line 7 starts with 'rank 2:'"),
    ],
)
def test_anything_else_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(TEXT.replace(old, new))


@pytest.mark.parametrize("name", ["", " a", "a\nb", "a  b", "a\x1b[31m", "a\x01"])
def test_a_name_that_would_not_come_back_is_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match="a name is printable words with single spaces between them"):
        format_schedule(schedule_of([0], ["0F0"], num_microbatches=1, name=name))
