"""What holds for every schedule that leaves fullbore and comes back, and for every fault put into one."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fullbore.errors import ScheduleError
from fullbore.ir.action import Compute, Kind, Send
from fullbore.ir.blocking import wait_cycles
from fullbore.ir.codec import format_schedule, parse_schedule
from fullbore.ir.explicit import Cell, ExplicitSchedule, RecvCell, SendCell
from fullbore.ir.explicit_spec import ExplicitRule, explicit_problems
from fullbore.ir.lower import lower
from fullbore.ir.program_spec import ProgramRule, program_problems
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import parse_schedule_file
from fullbore.ir.torch_csv import parse_torch_csv
from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.torch_write import format_torch_csv
from fullbore.ir.validate import Rule, problems
from fullbore.report.check import check_report
from tests.property.strategies import registered, schedules
from tests.property.symbolic import run


def one_way(schedule: Schedule) -> Schedule:
    """PyTorch's CSV has no schedules in both directions, and no slices."""
    assume(schedule.placement.num_streams == 1 and schedule.num_slices == 1)
    return schedule


@given(registered().map(one_way))
def test_a_csv_round_trips(schedule: Schedule) -> None:
    text = format_torch_csv(schedule)
    found = parse_torch_csv(text, name=schedule.name, where="x")
    assert found.schedule == schedule
    assert found.notes == ()
    assert format_torch_csv(schedule) == text


@given(registered().map(one_way))
def test_a_csv_with_communication_round_trips(schedule: Schedule) -> None:
    explicit = with_transfers(schedule)
    text = format_torch_csv(explicit)
    found = parse_torch_csv(text, name=schedule.name, where="x").schedule
    assert found == (explicit if schedule.num_ranks > 1 else schedule)
    if isinstance(found, ExplicitSchedule):
        assert format_torch_csv(found) == text
        assert found.compute_part() == schedule


@given(registered())
def test_text_round_trips(schedule: Schedule) -> None:
    assert parse_schedule(format_schedule(schedule)) == schedule


_WORDS = st.sampled_from(
    [
        *("0F0", "0B0", "1F0", "1B0", "0F1", "1I0", "1W0", "0R0", "3F9", "0SEND_F0", "1RECV_F0", "1SEND_B0"),
        *("0RECV_B0", "0SEND_B0", "7RECV_B1"),
        *("0UNSHARD", "1REDUCE_GRAD", "(0F0;1B0)OVERLAP_F_B", "", " ", "0F", '"', "0F" + "9" * 5000),
    ]
)
_ROWS = st.lists(st.lists(_WORDS, max_size=6).map(",".join), max_size=4).map("\n".join)
_LINES = st.lists(
    st.sampled_from(["fullbore schedule 1", "name x", "placement 0 1", "placement 0 0", "placement 0 999999999"])
    | st.sampled_from(["microbatches 1", "microbatches 0", "microbatches 999999999", "rank 0: 0F0 0B0", "rank 1:", ""])
    | st.sampled_from(["rank 1: 1F0 1B0", "rank 0: 0F" + "9" * 5000, "rank 0: 9F9"]),
    max_size=8,
).map(lambda lines: "\n".join(["fullbore schedule 1", *lines]))


@settings(max_examples=300)
@given(_ROWS | _LINES | st.text(max_size=40))
def test_whatever_a_file_holds_is_refused_or_checked(text: str) -> None:
    try:
        file = parse_schedule_file(text, name="x", where="x")
    except ScheduleError:
        return
    report = check_report(file, where="x", blocking=True)
    assert json.loads(json.dumps(report.document()))["valid"] == report.valid
    assert report.text().startswith("x: ")


@given(schedules)
def test_rows_lowered_as_pytorch_does_keep_every_rule_and_never_wait_in_a_cycle(schedule: Schedule) -> None:
    explicit = with_transfers(schedule)
    assert explicit.compute_part() == schedule
    assert explicit_problems(explicit) == ()
    assert wait_cycles(explicit) == ()


@given(schedules)
def test_a_lowered_program_never_waits_in_a_cycle_under_the_rules_of_lanes(schedule: Schedule) -> None:
    assert run(lower(schedule)).stalled == []


@given(schedules, st.data())
def test_a_swapped_pair_is_named(schedule: Schedule, data: st.DataObject) -> None:
    """A backward before its own forward, or a W before its I."""
    rank, order = _some_order(schedule, data)
    latter = data.draw(st.sampled_from([a for a in order if a.kind is not Kind.FORWARD]))
    before = Kind.BACKWARD_INPUT if latter.kind is Kind.BACKWARD_WEIGHT else Kind.FORWARD
    i, j = order.index(latter), order.index(replace(latter, kind=before))
    order[i], order[j] = order[j], order[i]
    rule = Rule.INPUT_BEFORE_WEIGHT if latter.kind is Kind.BACKWARD_WEIGHT else Rule.FORWARD_FIRST
    found = problems(_with_order(schedule, rank, order))
    assert (rule, rank, j, latter) in [(p.rule, p.rank, p.position, p.action) for p in found]


@given(schedules, st.data())
def test_a_dropped_action_is_named(schedule: Schedule, data: st.DataObject) -> None:
    rank, order = _some_order(schedule, data)
    dropped = order.pop(data.draw(st.integers(0, len(order) - 1)))
    broken = _with_order(schedule, rank, order)
    assume(any(action.kind is not Kind.FORWARD for row in broken.orders for action in row))
    assert (Rule.COMPLETE, rank, dropped) in [(p.rule, p.rank, p.action) for p in problems(broken)]


@given(schedules, st.data())
def test_a_doubled_or_dropped_transfer_is_named(schedule: Schedule, data: st.DataObject) -> None:
    explicit = with_transfers(schedule)
    rank, position, cell = _some_transfer(explicit, data)
    row = list(explicit.orders[rank])
    if data.draw(st.booleans()):
        position = data.draw(st.integers(position + 1, len(row)))
        row.insert(position, cell)
        place: int | None = position
    else:
        del row[position]
        place = None
    found = explicit_problems(_with_row(explicit, rank, row))
    assert (ExplicitRule.PAIRED, rank, place, cell) in [(p.rule, p.rank, p.position, p.action) for p in found]


@given(schedules, st.data())
def test_a_receive_moved_behind_its_use_is_named(schedule: Schedule, data: st.DataObject) -> None:
    explicit = with_transfers(schedule)
    rank, position, _ = _some_transfer(explicit, data, kind=RecvCell)
    row = list(explicit.orders[rank])
    row.append(row.pop(position))
    found = explicit_problems(_with_row(explicit, rank, row))
    assert ExplicitRule.RECEIVED_BEFORE_USE in {problem.rule for problem in found}


@given(schedules, st.data())
def test_a_receive_moved_before_another_of_the_same_sender_is_named(schedule: Schedule, data: st.DataObject) -> None:
    explicit = with_transfers(schedule)
    rank, position, cell = _some_transfer(explicit, data, kind=RecvCell)
    row = list(explicit.orders[rank])
    senders = [_sender(explicit, other) if isinstance(other, RecvCell) else None for other in row[:position]]
    assume(_sender(explicit, cell) in senders)
    row.insert(senders.index(_sender(explicit, cell)), row.pop(position))
    found = explicit_problems(_with_row(explicit, rank, row))
    assert {problem.rule for problem in found} == {ExplicitRule.LANE_ORDER}


@given(schedules, st.data())
def test_a_send_moved_before_its_action_is_named(schedule: Schedule, data: st.DataObject) -> None:
    explicit = with_transfers(schedule)
    rank, position, cell = _some_transfer(explicit, data, kind=SendCell)
    row = list(explicit.orders[rank])
    row.insert(0, row.pop(position))
    found = explicit_problems(_with_row(explicit, rank, row))
    assert (ExplicitRule.SENT_AFTER_MADE, rank, 0, cell) in [(p.rule, p.rank, p.position, p.action) for p in found]


@given(schedules, st.data())
def test_a_fault_in_a_lowered_program_is_named(schedule: Schedule, data: st.DataObject) -> None:
    program = lower(schedule)
    places = [
        (rank, position)
        for rank, row in enumerate(program.instructions)
        for position, one in enumerate(row)
        if not isinstance(one, Compute)
    ]
    assume(places)
    rank, position = data.draw(st.sampled_from(places))
    row = list(program.instructions[rank])
    fault = data.draw(st.sampled_from(["doubled", "dropped", "moved"]))
    is_send = isinstance(row[position], Send)
    if fault == "doubled":
        row.insert(position, row[position])
        rules = {ProgramRule.PAIRED}
    elif fault == "dropped":
        del row[position]
        rules = {ProgramRule.PAIRED, ProgramRule.SENT_AFTER_MADE if is_send else ProgramRule.RECEIVED_BEFORE_USE}
    else:
        row.append(row.pop(position))
        assume(not is_send or position < len(row) - 1)
        rules = {ProgramRule.SENT_AFTER_MADE if is_send else ProgramRule.RECEIVED_BEFORE_USE}
    broken = replace(
        program, instructions=(*program.instructions[:rank], tuple(row), *program.instructions[rank + 1 :])
    )
    assert rules <= {problem.rule for problem in program_problems(broken)}


def _some_order(schedule: Schedule, data: st.DataObject) -> tuple[int, list[Compute]]:
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    return rank, list(schedule.orders[rank])


def _with_order(schedule: Schedule, rank: int, order: list[Compute]) -> Schedule:
    return replace(schedule, orders=(*schedule.orders[:rank], tuple(order), *schedule.orders[rank + 1 :]))


def _with_row(explicit: ExplicitSchedule, rank: int, row: list[Cell]) -> ExplicitSchedule:
    return replace(explicit, orders=(*explicit.orders[:rank], tuple(row), *explicit.orders[rank + 1 :]))


def _some_transfer(
    explicit: ExplicitSchedule, data: st.DataObject, *, kind: type = object
) -> tuple[int, int, SendCell | RecvCell]:
    places = [
        (rank, position, cell)
        for rank, row in enumerate(explicit.orders)
        for position, cell in enumerate(row)
        if not isinstance(cell, Compute) and isinstance(cell, kind)
    ]
    assume(places)
    return data.draw(st.sampled_from(places))


def _sender(explicit: ExplicitSchedule, cell: SendCell | RecvCell) -> int:
    message = cell.message(explicit.placement)
    assert message is not None
    return explicit.placement.rank_of(message.stage)
