from __future__ import annotations

from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.problem import Problem, marked_grid
from fullbore.ir.validate import Rule, problems
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward
from tests.timetable import schedule_of


def test_the_cell_is_in_brackets_and_its_message_behind_the_row() -> None:
    bad = schedule_of([0, 1], ["0F0 0F1 0B0 0B1", "1F0 1B0 1F0 1F1 1B1"], num_microbatches=2)
    (problem,) = problems(bad)
    assert marked_grid(bad, problem) == (
        "rank 0   0F0   0F1   0B0   0B1\n"
        "rank 1   1F0   1B0  [1F0]  1F1   1B1   <-- rank 1, position 2: 1F0 on rank 1 is there twice\n"
    )


def test_what_is_missing_is_said_behind_the_row_it_is_missing_from() -> None:
    bad = schedule_of([0, 1], ["0F0 0B0", "1F0"], num_microbatches=1)
    (problem,) = problems(bad)
    assert marked_grid(bad, problem) == ("rank 0   0F0   0B0\nrank 1   1F0   <-- rank 1: 1B0 is missing on rank 1\n")


def test_a_problem_without_a_rank_stands_below() -> None:
    grid = marked_grid(schedule_of([0], ["0F0 0B0"], num_microbatches=1), Problem("x", None, None, None, "too few"))
    assert grid == "rank 0   0F0   0B0\ntoo few\n"


def test_a_long_message_leaves_its_rule_behind_the_row() -> None:
    schedule = schedule_of([0], ["0F0 0B0"], num_microbatches=1)
    grid = marked_grid(schedule, Problem(Rule.NO_CYCLE, Rank(0), 1, Compute.parse("0B0"), "long " * 30))
    assert grid == "rank 0   0F0  [0B0]   <-- rank 0, position 1: no-cycle\n"


def test_a_large_grid_shows_the_neighbourhood_of_the_cell() -> None:
    schedule = one_forward_one_backward(32, num_microbatches=64)
    lines = marked_grid(schedule, Problem("x", Rank(20), 90, schedule.orders[20][90], "here")).splitlines()
    assert lines[0].strip() == "(from position 85 of 128)"
    assert lines[1] == "(ranks 12 to 27 of 32)"
    assert len(lines) == 2 + 16
    (marked,) = [line for line in lines if "[" in line]
    assert marked.startswith("rank 20  ... ")
    assert f"[{schedule.orders[20][90]}]" in marked
    assert marked.endswith(" ...   <-- rank 20, position 90: here")
    assert max(map(len, lines)) < 140
