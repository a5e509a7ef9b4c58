from __future__ import annotations

import pytest

from fullbore.costs.layer import LayerCost
from fullbore.errors import PartitionError
from fullbore.partition.in_flight import in_flight
from fullbore.partition.objective import Objective
from fullbore.partition.partition import evaluate, solve
from fullbore.schedules.registry import get
from tests.timetable import schedule_of

LAYERS = (
    LayerCost("embed", 1, 0, 1, parameters=50, parameter_bytes=200, activation_bytes=1),
    *(LayerCost(f"block{i}", 4, 4, 4, parameters=10, parameter_bytes=40, activation_bytes=100) for i in range(4)),
    LayerCost("head", 10, 10, 10, parameters=50, parameter_bytes=200, optimizer_bytes=400, activation_bytes=10),
)


def test_the_slowest_stage_is_as_fast_as_it_can_be() -> None:
    found = solve(LAYERS, num_stages=3, in_flight=(3, 2, 1))
    assert found.layers_per_stage == (3, 2, 1)
    assert found.boundaries == (0, 3, 5)
    assert found.stage_time_ns == (26, 24, 30)
    assert (found.bottleneck_stage, found.bottleneck_ns) == (2, 30)
    assert found.imbalance == pytest.approx(30 / (80 / 3))
    assert found.stage_memory_bytes == (280 + 3 * 201, 80 + 2 * 200, 600 + 10)
    assert found.objective is Objective.TIME


def test_the_reason_is_one_sentence_about_what_decided() -> None:
    assert solve(LAYERS, num_stages=3).reason == (
        "stage 2 (head) is the slowest with 1.12 times the mean: one layer alone, so no cut is faster; "
        "more stages would not help"
    )
    assert solve(LAYERS, num_stages=2).reason == (
        "stage 1 (block3 to head) is the slowest with 1.05 times the mean; no contiguous cut has a faster slowest stage"
    )
    assert solve(LAYERS[1:5], num_stages=2).reason == "all stages take the same time"
    assert solve(LAYERS, num_stages=1).reason == "one stage holds every layer"


def test_parameters_can_be_made_even_instead() -> None:
    found = solve(LAYERS, num_stages=2, objective=Objective.PARAMETERS)
    assert found.layers_per_stage == (3, 3)
    assert found.reason.startswith("parameters were made even, not time; stage 1 (block2 to head) is the slowest")


def test_memory_moves_layers_away_from_the_stage_that_keeps_most() -> None:
    even = solve(LAYERS[1:5], num_stages=2, in_flight=(4, 1))
    tight = solve(LAYERS[1:5], num_stages=2, in_flight=(4, 1), memory_bytes=600)
    assert (even.layers_per_stage, tight.layers_per_stage) == ((2, 2), (1, 3))


def test_no_cut_within_memory_says_how_much_is_needed() -> None:
    with pytest.raises(PartitionError, match=r"within 100 bytes \(all layers together need 1371 bytes"):
        solve(LAYERS, num_stages=2, memory_bytes=100)


def test_given_counts_are_evaluated_as_they_are() -> None:
    assert evaluate(LAYERS, layers_per_stage=[5, 1]).bottleneck_ns == 50
    with pytest.raises(PartitionError, match=r"given \[3, 2\], which add up to 5; the model has 6"):
        evaluate(LAYERS, layers_per_stage=[3, 2])


def test_layers_without_cost_are_even() -> None:
    assert evaluate([LayerCost("a", 0, 0, 0)] * 2, layers_per_stage=[1, 1]).imbalance == 1.0


def test_1f1b_keeps_fewer_microbatches_towards_the_end() -> None:
    assert in_flight(get("1f1b").build(4, num_microbatches=8)) == (4, 3, 2, 1)
    assert in_flight(get("gpipe").build(2, num_microbatches=8)) == (8, 8)


def test_several_stages_of_a_rank_are_counted_apart() -> None:
    schedule = schedule_of([0, 0], ["0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1"], num_microbatches=2)
    assert in_flight(schedule) == (2, 1)
