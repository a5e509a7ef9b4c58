"""Two streams, slices of sequences, pairs that may run at once: their text, their rules, their simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ir.action import Compute
from fullbore.ir.codec import format_schedule, parse_schedule
from fullbore.ir.forward_only import forward_only
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.ir.program_spec import ProgramRule, program_problems
from fullbore.ir.schedule import Overlap, Schedule
from fullbore.ir.torch_write import format_torch_csv
from fullbore.ir.validate import Rule, problems
from fullbore.simulate.columnar import columnar
from fullbore.simulate.compiled import compile_schedule
from fullbore.simulate.engine import simulate
from tests.timetable import equal_costs, rows, timetable

CHIMERA = """\
fullbore schedule 1
name chimera
placement 0 1 0 1
streams 2
microbatches 2
rank 0: 0F0 2F1 2B1 0B0
rank 1: 3F1 1F0 1B0 3B1
"""
SLICED = """\
fullbore schedule 1
name seq
placement 0 1
microbatches 1
slices 2
rank 0: 0F0.0 0F0.1 0B0.1 0B0.0
rank 1: 1F0.0 1F0.1 1B0.1 1B0.0
"""
PAIRED = """\
fullbore schedule 1
name pairs
placement 0 1
microbatches 2
rank 0: 0F0 0F1 0B0 0B1
rank 1: 1F0 1F1&1B0 1B1
"""


@pytest.mark.parametrize("text", [CHIMERA, SLICED, PAIRED])
def test_the_text_of_each(text: str) -> None:
    schedule = parse_schedule(text)
    assert problems(schedule) == ()
    assert format_schedule(schedule) == text


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (CHIMERA, "streams 2", "streams 1", r"line 4: streams are written where there are at least 2 \(given 1\)"),
        (CHIMERA, "streams 2", "streams 3", r"one stream, or two over an even number of stages \(num_streams=3"),
        (CHIMERA, "streams 2", "streams two", r"line 4: a number is digits only"),
        (SLICED, "slices 2", "slices 1", r"line 5: slices are written where there are at least 2 \(given 1\)"),
        (SLICED, "0F0.0", "0F0.00", r"line 6, action 0: an action is written"),
        (SLICED, "0F0.0", "0F0.", r"line 6, action 0: an action is written"),
        (
            PAIRED,
            "1F1&1B0 1B1",
            "1F1&1B0&1B1",
            r"line 6, action 1: two actions may run at once \(given '1F1&1B0&1B1'\)",
        ),
        (PAIRED, "1F1&1B0", "1F1&", r"line 6, action 2: an action is written"),
    ],
)
def test_what_is_written_otherwise_is_refused(text: str, old: str, new: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text.replace(old, new))


@pytest.mark.parametrize(
    ("text", "old", "new", "rule", "message"),
    [
        (
            CHIMERA,
            "2F1 2B1",
            "2F1 2B1 2F0",
            Rule.ONE_STREAM,
            r"2F0 on rank 0: microbatch 0 takes the other stream, over stages 0 to 1",
        ),
        (CHIMERA, "3F1 1F0", "1F0", Rule.COMPLETE, r"3F1 is missing on rank 1"),
        (SLICED, "0F0.0 0F0.1 0B", "0F0.1 0F0.0 0B", Rule.SLICES_IN_ORDER, r"0F0.1 comes before 0F0.0 on rank 0"),
        (SLICED, "0B0.1 0B0.0", "0B0.0 0B0.1", Rule.SLICES_IN_ORDER, r"0B0.0 comes before 0B0.1 on rank 0"),
        (SLICED, "0F0.0 0F0.1 0B0.1 0B", "0F0.0 0B0.1 0F0.1 0B", Rule.FORWARD_FIRST, r"0B0.1 comes before 0F0.1"),
        (SLICED, "0F0.0 ", "0F0 ", Rule.KNOWN_SLICE, r"0F0 on rank 0: sequences are cut into slices 0 to 1"),
        (SLICED, "0F0.1 0", "0F0.2 0", Rule.KNOWN_SLICE, r"0F0.2 on rank 0: sequences are cut into slices 0 to 1"),
        (PAIRED, "0F0 0F1", "0F0.0 0F1", Rule.KNOWN_SLICE, r"0F0.0 on rank 0: sequences are whole"),
        (PAIRED, "1F0 1F1&1B0 1B1", "1F0 1B0 1F1&1B1", Rule.OVERLAP, r"1F1&1B1 is not a forward and, right after it"),
        (PAIRED, "1F0 1F1&1B0", "1F0&1F1 1B0", Rule.OVERLAP, r"1F0&1F1 is not a forward"),
    ],
)
def test_each_rule_of_theirs(text: str, old: str, new: str, rule: Rule, message: str) -> None:
    assert old in text
    found = problems(parse_schedule(text.replace(old, new)))
    assert rule in [problem.rule for problem in found]
    assert any(message.replace("\\", "") in problem.message for problem in found)


def test_a_file_with_more_slices_than_anything_has_is_refused_at_once() -> None:
    """By a number: a list of all slices would not fit into memory."""
    found = problems(parse_schedule(SLICED.replace("slices 2", "slices 999999999")))
    assert Rule.COMPLETE in [problem.rule for problem in found]
    assert any("1 microbatches, 999999999 slices), and there are" in problem.message for problem in found)


def test_a_pair_stands_side_by_side() -> None:
    apart = replace(parse_schedule(PAIRED), overlaps=frozenset({Overlap(Compute.parse("0F0"), Compute.parse("0B1"))}))
    found = problems(apart)
    assert [(problem.rule, problem.rank, str(problem.action)) for problem in found] == [(Rule.OVERLAP, 0, "0F0")]


def test_a_pair_must_be_able_to_start_together() -> None:
    """One after the other this runs; as one cell each rank waits for what the other's cell makes."""
    text = PAIRED.replace("0F0 0F1 0B0 0B1", "0F0 0F1&0B0 0B1").replace("1F0 1F1&1B0 1B1", "1F0 1F1&1B0 1B1")
    paired = parse_schedule(text)
    assert [problem.rule for problem in problems(paired)] == [Rule.NO_CYCLE]
    assert problems(replace(paired, overlaps=frozenset())) == ()


def test_a_pair_starts_with_both_inputs_and_sends_when_both_are_done() -> None:
    orders = ("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1B0 1F2 1B1 1B2")
    actions = tuple(tuple(map(Compute.parse, order.split())) for order in orders)
    pair = Overlap(Compute.parse("1F1"), Compute.parse("1B0"))
    flat = Schedule("flat", Placement.linear(2), 3, actions)
    joined = replace(flat, overlaps=frozenset({pair}))
    costs = [StageCost(1, 1, 0), StageCost(3, 2, 0)]
    assert timetable(simulate(flat, costs=costs))[0] == "0 1 2 . . . . . . 0' . . . . 1' . 2'"
    assert simulate(joined, costs=costs) == simulate(flat, costs=costs)  # the last stage's B needs its own F only
    three = parse_schedule(
        "fullbore schedule 1\nname x\nplacement 0 1 2\nmicrobatches 2\n"
        "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1F1&1B0 1B1\nrank 2: 2F0 2B0 2F1 2B1\n"
    )
    apart = replace(three, overlaps=frozenset())
    assert timetable(simulate(apart, costs=equal_costs(3))) == rows("""
        0 1 . .  .  0' . 1'
        . 0 1 .  0' .  1' .
        . . 0 0' 1  1' .  .
    """)
    assert timetable(simulate(three, costs=equal_costs(3))) == rows("""
        0 1 . .  . .  0' . . 1'
        . 0 . .  1 0' .  . 1' .
        . . 0 0' . .  1  1' . .
    """)
    links = [Link(2), Link(3)]
    for schedule in (three, apart, joined):
        wired = links[: schedule.num_stages - 1]
        exact = simulate(schedule, costs=equal_costs(schedule.num_stages), links=wired)
        fast = columnar(compile_schedule(schedule), costs=equal_costs(schedule.num_stages), links=wired)
        assert fast.to_timeline() == exact


def test_evaluation_takes_the_streams_in_turn() -> None:
    schedule = forward_only(Placement.bidirectional(2), num_microbatches=3)
    assert [" ".join(map(str, order)) for order in schedule.orders] == ["0F0 2F1 0F2", "1F0 3F1 1F2"]
    assert problems(schedule) == ()
    assert program_problems(lower(schedule)) == ()


def test_a_message_that_nobody_needs_belongs_on_no_lane() -> None:
    program = lower(parse_schedule(CHIMERA))
    send = next(one for one in program.instructions[0] if not isinstance(one, Compute))
    stray = replace(send, message=replace(send.message, stage=type(send.message.stage)(1)))
    broken = replace(program, instructions=((stray, *program.instructions[0]), program.instructions[1]))
    assert ProgramRule.KNOWN_LANE in [problem.rule for problem in program_problems(broken)]


def test_slices_have_no_csv() -> None:
    with pytest.raises(ScheduleError, match="PyTorch runs whole sequences, and 'seq' cuts them into 2 slices"):
        format_torch_csv(parse_schedule(SLICED))
