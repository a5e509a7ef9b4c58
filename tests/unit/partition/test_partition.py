from __future__ import annotations

import pytest

from fullbore.costs.layer import LayerCost
from fullbore.errors import PartitionError
from fullbore.ir.placement import Placement
from fullbore.partition.in_flight import in_flight
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import NothingFits, evaluate, solve
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
    assert found.objective is PartitionObjective.TIME


def test_the_reason_is_one_sentence_about_what_decided() -> None:
    assert solve(LAYERS, num_stages=3).reason == (
        "stage 2 (head) is the slowest with 1.12 times the mean: one layer alone, so no cut is faster; "
        "more stages would not help"
    )
    assert solve(LAYERS, num_stages=2).reason == (
        "stage 1 (block3 to head) is the slowest with 1.05 times the mean, 71% of it in head alone; "
        "no contiguous cut has a faster slowest stage"
    )
    assert solve(LAYERS[1:5], num_stages=2).reason == "all stages take the same time"
    assert solve(LAYERS, num_stages=1).reason == "one stage holds every layer"


def test_parameters_can_be_made_even_instead() -> None:
    found = solve(LAYERS, num_stages=2, objective=PartitionObjective.PARAMETERS)
    assert found.layers_per_stage == (3, 3)
    assert found.reason.startswith("parameters were made even, not time; stage 1 (block2 to head) is the slowest")


def test_memory_moves_layers_away_from_the_stage_that_keeps_most() -> None:
    even = solve(LAYERS[1:5], num_stages=2, in_flight=(4, 1))
    tight = solve(LAYERS[1:5], num_stages=2, in_flight=(4, 1), memory_bytes=600)
    assert (even.layers_per_stage, tight.layers_per_stage) == ((2, 2), (1, 3))


def test_no_cut_within_memory_says_how_much_is_needed() -> None:
    """The nearest limit is exact: with it there is a cut, with one byte less there is none."""
    with pytest.raises(NothingFits, match=r"within 100 bytes; the least that has one is 750 bytes") as no:
        solve(LAYERS, num_stages=2, memory_bytes=100)
    assert no.value.nearest_bytes == 750
    found = solve(LAYERS, num_stages=2, memory_bytes=750)
    assert max(found.stage_memory_bytes) == 750
    assert found.reason.endswith("no cut within the memory limit has a faster slowest stage")
    with pytest.raises(NothingFits):
        solve(LAYERS, num_stages=2, memory_bytes=749)


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


def test_a_full_pipe_is_as_fast_as_its_slowest_stage() -> None:
    """Eight stages of 3.153, 3.150 six times, and 3.901 with the head are 6.653 times as fast as one, not 8."""
    times = [3153, *[3150] * 6, 3901]
    names = ["embed", *(f"blocks{i}" for i in range(1, 7)), "head"]
    layers = [LayerCost(name, time, 0, 0) for name, time in zip(names, times, strict=True)]
    found = evaluate(layers, layers_per_stage=[1] * 8)
    assert f"{found.balance:.2%}" == "83.16%"
    assert round(found.speedup, 3) == 6.653
    assert (found.bottleneck_stage, found.bottleneck_ns) == (7, 3901)
    assert found.reason == "as given; stage 7 (head) is the slowest with 1.20 times the mean"


def test_the_layer_that_makes_a_stage_slow_is_named() -> None:
    """The same pipe with the head in one stage with the last blocks, as models are cut."""
    blocks = [LayerCost(f"block{i}", 525, 0, 0) for i in range(46)]
    layers = [LayerCost("embed", 3, 0, 0), *blocks, LayerCost("head", 1801, 0, 0)]
    found = evaluate(layers, layers_per_stage=[7, 6, 6, 6, 6, 6, 6, 5])
    assert found.stage_time_ns == (3153, *[3150] * 6, 3901)
    assert "stage 7 (block42 to head) is the slowest with 1.20 times the mean, 46% of it in head" in found.reason


def test_ranks_with_several_stages_are_weighed_as_a_whole() -> None:
    found = evaluate(LAYERS, layers_per_stage=[1, 2, 2, 1], placement=Placement.loop(2, num_chunks=2))
    assert found.stage_time_ns == (2, 24, 24, 30)
    assert found.rank_time_ns == (26, 54)
    assert found.speedup == pytest.approx(80 / 54)
    assert found.balance == pytest.approx(40 / 54)


def test_totals_are_those_of_the_layers_that_are_there() -> None:
    """An override that would build one layer of twenty is refused, never run under the name of twenty."""
    layers = [LayerCost(f"layer{i}", 1, 1, 1, parameters=10 + i) for i in range(20)]
    with pytest.raises(PartitionError, match=r"given \[1\], which add up to 1; the model has 20"):
        evaluate(layers, layers_per_stage=[1])
    for counts in ([20], [19, 1], [4] * 5):
        found = evaluate(layers, layers_per_stage=counts)
        assert sum(found.stage_parameters) == sum(layer.parameters for layer in layers)
        assert sum(found.stage_time_ns) == 60


@pytest.mark.parametrize(("layers", "stages"), [(80, 32), (40, 16), (30, 4), (10, 3), (27, 4)])
def test_no_layer_is_lost_where_counts_do_not_divide(layers: int, stages: int) -> None:
    """80 layers over p=16, v=2 once built 64, and 30 over 4 built 28. Every layer is in exactly one stage."""
    costs = [LayerCost(f"layer{i}", 1, 1, 1, parameters=1 << i) for i in range(layers)]
    found = solve(costs, num_stages=stages)
    assert sum(found.layers_per_stage) == layers
    assert sum(found.stage_parameters) == (1 << layers) - 1
    for stage, (first, count) in enumerate(zip(found.boundaries, found.layers_per_stage, strict=True)):
        assert found.stage_parameters[stage] == sum(1 << i for i in range(first, first + count))
