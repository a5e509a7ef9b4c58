from __future__ import annotations

import pytest

from fullbore.errors import InvalidSchedule, ScheduleError
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Instruction, Payload
from fullbore.ir.forward_only import forward_only
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.ir.program import Program
from tests.timetable import schedule_of

ONE_F_ONE_B = schedule_of([0, 1], ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], num_microbatches=2)


def short(instruction: Instruction) -> str:
    """``1F0`` for a compute; ``>`` and ``<`` with what is sent or received: a(ctivation) or g(radient), stage, mb."""
    if isinstance(instruction, Compute):
        return str(instruction)
    message = instruction.message
    mark = ">" if type(instruction).__name__ == "Send" else "<"
    return f"{mark}{message.payload.value[0]}{message.stage}.{message.microbatch}"


def words(program: Program) -> list[str]:
    return [" ".join(map(short, instructions)) for instructions in program.instructions]


def test_receives_come_before_and_sends_after() -> None:
    assert words(lower(ONE_F_ONE_B)) == [
        "0F0 >a0.0 0F1 >a0.1 <g1.0 0B0 <g1.1 0B1",
        "<a0.0 1F0 1B0 >g1.0 <a0.1 1F1 1B1 >g1.1",
    ]


def test_a_split_backward_sends_after_its_input_half() -> None:
    split = schedule_of([0, 1], ["0F0 0I0 0W0", "1F0 1I0 1W0"], num_microbatches=1)
    assert words(lower(split)) == ["0F0 >a0.0 <g1.0 0I0 0W0", "<a0.0 1F0 1I0 >g1.0 1W0"]


def test_stages_of_one_rank_hand_over_without_a_message() -> None:
    snake = schedule_of([0, 1, 1, 0], ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"], num_microbatches=1)
    program = lower(snake)
    assert words(program) == ["0F0 >a0.0 <a2.0 3F0 3B0 >g3.0 <g1.0 0B0", "<a0.0 1F0 2F0 >a2.0 <g3.0 2B0 1B0 >g1.0"]
    assert [str(lane) for lane in program.lanes] == [
        "lane 0->1 (activations)",
        "lane 0->1 (gradients)",
        "lane 1->0 (activations)",
        "lane 1->0 (gradients)",
    ]


def test_lanes_are_one_a_direction_in_a_fixed_order() -> None:
    program = lower(forward_only(Placement.linear(3), num_microbatches=1))
    assert [(lane.sender, lane.receiver, lane.payload) for lane in program.lanes] == [
        (Rank(0), Rank(1), Payload.ACTIVATION),
        (Rank(1), Rank(2), Payload.ACTIVATION),
    ]


def test_a_single_rank_needs_no_lane() -> None:
    assert lower(schedule_of([0, 0], ["0F0 1F0 1B0 0B0"], num_microbatches=1)).lanes == ()


OUT_OF_ORDER = schedule_of(
    [0, 1],
    ["0F0 0F1 0F2 0B2 0B1 0B0", "1F2 1B2 1F1 1B1 1F0 1B0"],
    num_microbatches=3,
)
"""Rank 1 takes the activations in the reverse of the order in which rank 0 sends them."""


@pytest.mark.parametrize(("prefetch", "depths"), [(1, (3, 1)), (2, (3, 2)), (9, (3, 3))])
def test_depth_covers_the_messages_that_lie_before_the_wanted_one(prefetch: int, depths: tuple[int, int]) -> None:
    program = lower(OUT_OF_ORDER, prefetch=prefetch)
    assert [message.microbatch for message in program.lanes[0].messages] == [0, 1, 2]
    assert tuple(lane.depth for lane in program.lanes) == depths


def test_in_order_lanes_need_a_depth_of_one_more_for_each_prefetch() -> None:
    assert [lane.depth for lane in lower(ONE_F_ONE_B, prefetch=1).lanes] == [1, 1]
    assert [lane.depth for lane in lower(ONE_F_ONE_B, prefetch=2).lanes] == [2, 2]


def test_prefetch_is_at_least_one() -> None:
    with pytest.raises(ScheduleError, match=r"prefetch must be at least 1 receive \(prefetch=0\)"):
        lower(ONE_F_ONE_B, prefetch=0)


def test_an_invalid_schedule_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="0B0 is missing on rank 0"):
        lower(schedule_of([0, 1], ["0F0", "1F0 1B0"], num_microbatches=1))
