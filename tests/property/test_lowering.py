"""What holds for every lowered program, published schedule or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fullbore.ids import StageIndex
from fullbore.ir.action import Compute, Recv, Send
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.ir.program_spec import check_program, required_depth
from fullbore.ir.schedule import Schedule
from tests.property.strategies import schedules, shuffled
from tests.property.symbolic import run


@given(schedules, st.integers(1, 5))
def test_compute_order_stays_and_messages_pair(schedule: Schedule, prefetch: int) -> None:
    program = lower(schedule, prefetch=prefetch)
    check_program(program)
    sends: Counter[object] = Counter()
    receives: Counter[object] = Counter()
    for rank, instructions in enumerate(program.instructions):
        assert tuple(i for i in instructions if isinstance(i, Compute)) == schedule.orders[rank]
        for instruction in instructions:
            if isinstance(instruction, Send):
                sends[instruction.message, instruction.lane] += 1
                assert program.lanes[instruction.lane].sender == rank
            elif isinstance(instruction, Recv):
                receives[instruction.message, instruction.lane] += 1
                assert program.lanes[instruction.lane].receiver == rank
    assert sends == receives
    assert all(count == 1 for count in sends.values())


@given(schedules)
def test_lanes_follow_the_sender(schedule: Schedule) -> None:
    program = lower(schedule)
    keys = [(lane.sender, lane.receiver, lane.payload) for lane in program.lanes]
    assert len(set(keys)) == len(keys)
    for index, lane in enumerate(program.lanes):
        sent = [i.message for i in program.instructions[lane.sender] if isinstance(i, Send) and i.lane == index]
        assert lane.messages == tuple(sent)
        assert 1 <= lane.depth <= len(sent)


@given(schedules, st.integers(1, 3))
def test_every_weight_gradient_counts_every_microbatch_once(schedule: Schedule, prefetch: int) -> None:
    outcome = run(lower(schedule, prefetch=prefetch))
    assert outcome.stalled == []
    assert outcome.left_over == 0
    everything = Counter(dict.fromkeys(range(schedule.num_microbatches), schedule.num_slices))
    for stage, counted in enumerate(outcome.weight_gradients):
        mirror = schedule.placement.mirror_of(StageIndex(stage))
        assert counted + (Counter() if mirror is None else outcome.weight_gradients[mirror]) == everything


@given(st.integers(0, 10**6))
def test_with_one_receive_less_than_the_order_needs_a_rank_waits_for_ever(seed: int) -> None:
    schedule = shuffled(Placement.snake(2, num_chunks=2), num_microbatches=4, split=False, seed=seed)
    program = lower(schedule, prefetch=1)
    for index, lane in enumerate(program.lanes):
        waits = [i.message for i in program.instructions[lane.receiver] if isinstance(i, Recv) and i.lane == index]
        assert lane.depth == required_depth(lane.messages, waits)
        if lane.depth > 1:
            lanes = list(program.lanes)
            lanes[index] = replace(lane, depth=lane.depth - 1)
            assert lane.receiver in run(replace(program, lanes=tuple(lanes))).stalled
