from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fullbore.errors import InvalidSchedule
from fullbore.ir.action import Compute, Instruction, Recv, Send
from fullbore.ir.lower import lower
from fullbore.ir.program import Program
from fullbore.ir.program_spec import ProgramRule, check_program
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward

SCHEDULE = one_forward_one_backward(3, num_microbatches=4)
PROGRAM = lower(SCHEDULE)
Edit = Callable[[list[Instruction]], None]


def edited(edit: Edit, *, rank: int) -> Program:
    instructions = [list(order) for order in PROGRAM.instructions]
    edit(instructions[rank])
    return replace(PROGRAM, instructions=tuple(map(tuple, instructions)))


def first(order: list[Instruction], kind: type) -> int:
    return next(index for index, instruction in enumerate(order) if isinstance(instruction, kind))


def drop(kind: type) -> Edit:
    def edit(order: list[Instruction]) -> None:
        del order[first(order, kind)]

    return edit


def delay(kind: type) -> Edit:
    def edit(order: list[Instruction]) -> None:
        index = first(order, kind)
        order.insert(index + 1, order.pop(index))

    return edit


def onto_lane(lane: int) -> Edit:
    def edit(order: list[Instruction]) -> None:
        index = first(order, Recv)
        received = order[index]
        assert isinstance(received, Recv)
        order[index] = replace(received, lane=lane)

    return edit


def test_a_lowered_program_is_as_it_should_be() -> None:
    check_program(PROGRAM)
    computed = [tuple(one for one in rank if isinstance(one, Compute)) for rank in PROGRAM.instructions]
    assert computed == list(SCHEDULE.orders)


@pytest.mark.parametrize(
    ("edit", "rule", "message"),
    [
        (drop(Recv), ProgramRule.RECEIVED_BEFORE_USE, r"1F0 on rank 1 starts without a receive of the activation"),
        (drop(Recv), ProgramRule.PAIRED, r"lane 0->1 \(activations\) sends 4 messages and receives 3"),
        (drop(Send), ProgramRule.SENT_AFTER_MADE, r"1F0 on rank 1 is not followed by the send of the activation"),
        (drop(Send), ProgramRule.LANE_ORDER, r"lane 1->2 \(activations\) lists its messages in another order"),
        (delay(Recv), ProgramRule.RECEIVED_BEFORE_USE, r"1F0 on rank 1 starts without a receive"),
        (delay(Send), ProgramRule.SENT_AFTER_MADE, r"sends the activation .* at another place"),
        (onto_lane(99), ProgramRule.KNOWN_LANE, r"does not belong on lane 99 at rank 1"),
        (onto_lane(1), ProgramRule.KNOWN_LANE, r"does not belong on lane 1 at rank 1"),
    ],
)
def test_each_rule_of_communication_is_named(edit: Edit, rule: ProgramRule, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message) as raised:
        check_program(edited(edit, rank=1))
    assert rule.value in raised.value.rules


def test_depth_is_at_least_what_the_order_needs() -> None:
    shallow = replace(PROGRAM, lanes=(replace(PROGRAM.lanes[0], depth=0), *PROGRAM.lanes[1:]))
    with pytest.raises(InvalidSchedule, match=r"lane 0->1 \(activations\) has depth 0, needs 1"):
        check_program(shallow)


def test_lane_order_is_the_senders() -> None:
    lane = PROGRAM.lanes[0]
    turned = replace(lane, messages=tuple(reversed(lane.messages)))
    with pytest.raises(InvalidSchedule, match="in another order than rank 0 sends them"):
        check_program(replace(PROGRAM, lanes=(turned, *PROGRAM.lanes[1:])))


def test_the_compute_part_obeys_the_rules_of_schedules() -> None:
    def without_last(order: list[Instruction]) -> None:
        order.pop(first(order, Send) - 1)

    with pytest.raises(InvalidSchedule, match="0F0 is missing on rank 0"):
        check_program(edited(without_last, rank=0))


def test_every_rule_has_a_reason() -> None:
    assert all(rule.reason for rule in ProgramRule)
