from __future__ import annotations

from fullbore.ir.flow import flow
from tests.timetable import schedule_of


def test_steps_are_an_order_in_which_everything_can_run() -> None:
    walk = flow(schedule_of([0, 1], ["0F0 0B0", "1F0 1B0"], num_microbatches=1))
    assert [str(step.action) for step in walk.steps] == ["0F0", "1F0", "1B0", "0B0"]
    assert walk.stuck == ()


def test_a_rank_that_waits_for_its_own_forward_is_stuck() -> None:
    walk = flow(schedule_of([0, 1], ["0F0 0B0", "1B0 1F0"], num_microbatches=1))
    assert [str(stuck) for stuck in walk.stuck] == [
        "rank 0 at 0B0 waits for the gradient of stage 1, microbatch 0",
        "rank 1 at 1B0 waits for 1F0",
    ]


def test_a_weight_gradient_waits_for_the_input_half() -> None:
    walk = flow(schedule_of([0], ["0F0 0W0 0I0"], num_microbatches=1))
    assert [str(stuck) for stuck in walk.stuck] == ["rank 0 at 0W0 waits for 0I0"]
