from __future__ import annotations

from fullbore.ids import StageIndex
from fullbore.simulate.held import peak_held_bytes
from tests.support.split_schedules import mixed, one_forward_one_input, v_shaped
from tests.timetable import schedule_of


def test_from_i_to_w_each_microbatch_holds_what_its_stage_holds() -> None:
    held = {StageIndex(stage): 10**stage for stage in range(4)}
    assert peak_held_bytes(one_forward_one_input(4, 8), held=held) == (1, 20, 300, 4000)
    assert peak_held_bytes(one_forward_one_input(2, 5, lag=9), held=held) == (5, 50)
    assert peak_held_bytes(mixed(2, 5), held=held) == (2, 20)
    assert peak_held_bytes(v_shaped(3), held=held) == (3003, 330)


def test_a_whole_backward_holds_nothing() -> None:
    assert peak_held_bytes(schedule_of([0], ["0F0 0B0"], num_microbatches=1), held={StageIndex(0): 5}) == (0,)
