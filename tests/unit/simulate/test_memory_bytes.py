from __future__ import annotations

import pytest

from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import MemoryPoint, memory_curve, peak_bytes
from tests.timetable import equal_costs, schedule_of


def test_a_stage_keeps_what_its_layers_keep() -> None:
    layers = [LayerCost("a", 1, 1, 1, parameter_bytes=3, optimizer_bytes=6, activation_bytes=10, output_bytes=99)] * 2
    memory = StageMemory.of_layers(layers)
    assert memory == StageMemory(18, 20)
    assert memory.with_in_flight(3) == 78
    with pytest.raises(CostsError, match="at least 0 bytes"):
        StageMemory(-1, 0)


def test_parameters_stay_and_activations_come_in_flight() -> None:
    stages = [StageMemory(1000 * stage, 10 + stage) for stage in range(4)]
    schedule = get("1f1b").build(4, num_microbatches=8)
    assert peak_bytes(schedule, stages=stages) == (4 * 10, 1000 + 3 * 11, 2000 + 2 * 12, 3000 + 13)


def test_chunks_peak_together_or_apart() -> None:
    """Stage 0 keeps two before stage 1 keeps any: the peak of the sum is 2 a + b, not 2 a + 2 b."""
    schedule = schedule_of([0, 0], ["0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1"], num_microbatches=2)
    assert peak_bytes(schedule, stages=[StageMemory(1, 100), StageMemory(2, 10)]) == (3 + 210,)


def test_a_split_backward_frees_at_its_weight_half() -> None:
    split = schedule_of([0], ["0F0 0I0 0W0"], num_microbatches=1)
    curve = memory_curve(
        simulate(split, costs=[StageCost(2, 3, 4)]), placement=split.placement, stages=[StageMemory(5, 7)]
    )
    assert curve == ((MemoryPoint(0, 5), MemoryPoint(0, 12), MemoryPoint(9, 5)),)


def test_memory_over_time_rises_at_a_forward_and_falls_after_a_backward() -> None:
    schedule = get("1f1b").build(2, num_microbatches=2)
    timeline = simulate(schedule, costs=equal_costs(2, forward=1, backward_input=2))
    first, second = memory_curve(timeline, placement=schedule.placement, stages=[StageMemory(0, 10)] * 2)
    assert [(point.time_ns, point.bytes) for point in first] == [(0, 0), (0, 10), (1, 20), (6, 10), (9, 0)]
    assert [(point.time_ns, point.bytes) for point in second] == [(0, 0), (1, 10), (4, 0), (4, 10), (7, 0)]


def test_evaluation_keeps_parameters_only() -> None:
    forward = schedule_of([0], ["0F0 0F1"], num_microbatches=2)
    assert peak_bytes(forward, stages=[StageMemory(5, 7)]) == (5,)


def test_one_memory_a_stage() -> None:
    schedule = get("1f1b").build(2, num_microbatches=2)
    with pytest.raises(CostsError, match=r"each of the 2 stages \(given 1\)"):
        peak_bytes(schedule, stages=[StageMemory(0, 0)])
