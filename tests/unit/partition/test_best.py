"""Cuts that a simulation of the schedule decides."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.judge import Judge
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import NothingFits, Partition, solve
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of


def layers_of(*times: int) -> list[LayerCost]:
    return [LayerCost(f"layer{i}", time, time, 0) for i, time in enumerate(times)]


def makespan(found: Partition, layers: list[LayerCost], schedule: Schedule) -> int:
    held = [layers[first:end] for first, end in pairwise((*found.boundaries, len(layers)))]
    return bubble_of(simulate(schedule, costs=[StageCost.of_layers(stage) for stage in held])).makespan_ns


def llama_70b(head: float) -> list[LayerCost]:
    """80 equal blocks, an embedding that costs next to nothing, and a head of ``head`` blocks."""
    block, last = 1000, round(head * 1000)
    return [
        LayerCost("embed", 0, 0, 20),
        *(LayerCost(f"block{i}", block, block, block) for i in range(80)),
        LayerCost("head", last, last, last),
    ]


def test_with_few_microbatches_the_least_bottleneck_is_not_the_fastest() -> None:
    """Found by trying all cuts: the slower slowest stage is worth it, and the reason says by how much."""
    layers = layers_of(4, 5, 5, 4, 4, 6)
    schedule = get("1f1b").build(3, num_microbatches=3)
    least, found = solve(layers, num_stages=3), best_partition(layers, schedule=schedule)
    assert least.layers_per_stage == (2, 2, 2)
    assert found.layers_per_stage == (3, 2, 1)
    assert found.bottleneck_ns > least.bottleneck_ns
    before, after = makespan(least, layers, schedule), makespan(found, layers, schedule)
    assert after < before
    assert found.reason.endswith(
        f"it is the fastest in a simulation of 1f1b with 3 microbatches, {1 - after / before:.2%} faster than the cut "
        "with the fastest slowest stage"
    )


def test_where_nothing_is_faster_the_least_bottleneck_stays() -> None:
    found = best_partition(layers_of(1, 1, 1, 1, 1), schedule=get("1f1b").build(4, num_microbatches=16))
    assert found.layers_per_stage == (2, 1, 1, 1)
    assert found.reason.endswith(
        "no contiguous cut has a faster slowest stage, and none of 3 others that could be is faster in a simulation of "
        "1f1b with 16 microbatches"
    )


def test_equal_and_single_stages_need_no_more_words() -> None:
    assert best_partition(layers_of(1, 1), schedule=get("1f1b").build(2, num_microbatches=4)).reason == (
        "all stages take the same time"
    )
    assert best_partition(layers_of(1, 2), schedule=get("1f1b").build(1, num_microbatches=4)).reason == (
        "one stage holds every layer"
    )


def test_a_slow_link_moves_the_cut_to_a_small_message() -> None:
    sizes = (9000, 1, 9000, 9000, 0)
    layers = [LayerCost(f"layer{i}", 10, 10, 0, output_bytes=size) for i, size in enumerate(sizes)]
    schedule = get("1f1b").build(2, num_microbatches=2)
    assert best_partition(layers, schedule=schedule).layers_per_stage == (3, 2)
    slow = best_partition(layers, schedule=schedule, links=[Link(0, bytes_per_s=10**11)])
    assert slow.layers_per_stage == (2, 3)
    with pytest.raises(CostsError, match=r"one link for each of the 1 boundaries \(given 2\)"):
        best_partition(layers, schedule=schedule, links=[Link(), Link()])


def test_memory_follows_the_microbatches_in_flight() -> None:
    """1F1B keeps 4 on the first of four stages and 1 on the last; GPipe keeps 8 on each, and nothing fits."""
    layers = [LayerCost(f"layer{i}", 1, 1, 0, activation_bytes=10) for i in range(12)]
    found = best_partition(layers, schedule=get("1f1b").build(4, num_microbatches=8), memory_bytes=80)
    assert found.layers_per_stage == (2, 2, 4, 4)
    assert found.stage_memory_bytes == (80, 60, 80, 40)
    assert "within the memory limit" in found.reason
    with pytest.raises(NothingFits, match="the least that has one is 240 bytes") as no:
        best_partition(layers, schedule=get("gpipe").build(4, num_microbatches=8), memory_bytes=80)
    again = best_partition(layers, schedule=get("gpipe").build(4, num_microbatches=8), memory_bytes=240)
    assert max(again.stage_memory_bytes) == no.value.nearest_bytes == 240


def test_memory_of_a_rank_is_that_of_all_its_chunks() -> None:
    schedule = get("interleaved-1f1b").build(2, num_microbatches=4, num_chunks=2)
    layers = [LayerCost(f"layer{i}", 1, 1, 0, parameter_bytes=100 if i < 2 else 10) for i in range(8)]
    judge = Judge(layers, schedule=schedule)
    free = best_partition(layers, schedule=schedule)
    assert judge.peak_bytes(np.array([free.layers_per_stage])).max() == 220
    tight = best_partition(layers, schedule=schedule, memory_bytes=150)
    assert judge.peak_bytes(np.array([tight.layers_per_stage])).max() <= 150
    assert "within the memory limit" in tight.reason
    with pytest.raises(NothingFits, match=r"nearest one needs 1\d\d bytes") as no:
        best_partition(layers, schedule=schedule, memory_bytes=90)
    best_partition(layers, schedule=schedule, memory_bytes=no.value.nearest_bytes)


@pytest.mark.parametrize("head", [1.0, 1.23])
@pytest.mark.parametrize("microbatches", [16, 32])
def test_the_rank_with_the_head_gets_one_block_less(head: float, microbatches: int) -> None:
    """Llama-3-70B on 8 ranks with 5 chunks each. The published layout gives the last rank 9 blocks and one other
    rank 11; ten everywhere is what it is to be preferred to."""
    layers = llama_70b(head)
    schedule = get("interleaved-1f1b").build(8, num_microbatches=microbatches, num_chunks=5)
    found = best_partition(layers, schedule=schedule)
    blocks = [sum(found.layers_per_stage[rank::8]) for rank in range(8)]
    blocks[0], blocks[7] = blocks[0] - 1, blocks[7] - 1
    assert sorted(blocks) == [9, 10, 10, 10, 10, 10, 10, 11]
    assert blocks[7] == 9
    published = [3, *[2] * 34, 3, 2, 2, 2, 2]
    ten_everywhere = [3, *[2] * 38, 3]
    mine, theirs, even = Judge(layers, schedule=schedule).scores(
        np.array([found.layers_per_stage, published, ten_everywhere])
    )
    assert mine.makespan <= theirs.makespan < even.makespan
    assert mine.rank_bottleneck == theirs.rank_bottleneck <= even.rank_bottleneck


def test_sums_over_a_ranks_chunks_are_made_even() -> None:
    """The least bottleneck over four chunks leaves one rank with far more than the other."""
    layers = layers_of(4, 4, 1, 3, 4, 4, 1, 3)
    schedule = get("interleaved-1f1b").build(2, num_microbatches=8, num_chunks=2)
    found, least = best_partition(layers, schedule=schedule), solve(layers, num_stages=4)
    sums = [sum(least.stage_time_ns[rank::2]) for rank in range(2)]
    assert sum(found.rank_time_ns) == sum(sums) == 48
    assert max(found.rank_time_ns) < max(sums)
    assert makespan(found, layers, schedule) < makespan(least, layers, schedule)


def test_a_schedule_too_large_to_simulate_says_so() -> None:
    layers = layers_of(*[3, 1, 2] * 30)
    found = best_partition(layers, schedule=get("1f1b").build(64, num_microbatches=512))
    assert found.layers_per_stage == solve(layers, num_stages=64).layers_per_stage
    assert "that alone decided: 1f1b with 512 microbatches has 65536 actions, too many" in found.reason


def test_rank_sums_are_made_even_even_where_a_search_is_too_large() -> None:
    """Every 32nd stage is on the same rank; the heavy layers come every 32 layers and need not."""
    layers = layers_of(*[30 if i % 32 == 5 else 10 for i in range(96)])
    schedule = get("interleaved-1f1b").build(32, num_microbatches=512, num_chunks=2)
    found, least = best_partition(layers, schedule=schedule), solve(layers, num_stages=64)
    sums = [sum(least.stage_time_ns[rank::32]) for rank in range(32)]
    assert max(found.rank_time_ns) < max(sums)
    assert "of 2 cuts, the most promising ones, it is the fastest in a simulation" in found.reason


def test_parameters_are_made_even_and_not_simulated() -> None:
    layers = [LayerCost(f"layer{i}", 1 + i, 1, 0, parameters=1, parameter_bytes=50) for i in range(4)]
    schedule = get("1f1b").build(2, num_microbatches=2)
    found = best_partition(layers, schedule=schedule, objective=PartitionObjective.PARAMETERS)
    assert found.layers_per_stage == (2, 2)
    assert found.reason.startswith("parameters were made even, not time")
    with pytest.raises(NothingFits, match="the least that has one is 100 bytes"):
        best_partition(layers, schedule=schedule, objective=PartitionObjective.PARAMETERS, memory_bytes=99)


def test_the_same_input_gives_the_same_cut() -> None:
    layers = layers_of(*[(7 * i) % 11 + 1 for i in range(60)])
    schedule = get("1f1b").build(8, num_microbatches=16)
    assert best_partition(layers, schedule=schedule) == best_partition(layers, schedule=schedule)


def test_of_layers_that_are_held_twice_each_rank_has_two_runs_of_one_cut() -> None:
    """Two ranks hold everything each, so the busiest rank is the same for every cut; only how they fit decides."""
    layers = [
        LayerCost(f"layer{i}", t, t, t, parameter_bytes=100, activation_bytes=1) for i, t in enumerate((6, 2, 2, 2))
    ]
    found = best_partition(layers, schedule=get("dualpipe").build(2, num_microbatches=4))
    assert found.layers_per_stage == (1, 3)
    assert found.rank_time_ns == (36, 36), "of one microbatch each way"
    assert found.speedup == pytest.approx(2.0)
    four = get("dualpipe").build(4, num_microbatches=8)
    uneven = layers_of(4, 1, 1, 2, 3, 1, 2, 6)
    cut = best_partition(uneven, schedule=four)
    assert cut.layers_per_stage == (2, 3, 2, 1)
    assert cut.stage_time_ns == (10, 12, 6, 12)
    assert cut.rank_time_ns == (22, 18, 18, 22), "rank r holds the runs r and p - 1 - r"
    cuts = [(a, b, c, 8 - a - b - c) for a in range(1, 6) for b in range(1, 7 - a) for c in range(1, 8 - a - b)]
    assert min(score.makespan for score in Judge(uneven, schedule=four).scores(np.array(cuts))) == 93
    assert Judge(uneven, schedule=four).scores(np.array([cut.layers_per_stage]))[0].makespan == 93
    with pytest.raises(NothingFits, match="keeps every rank within 300 bytes; the nearest one needs 4"):
        best_partition(layers, schedule=get("dualpipe").build(2, num_microbatches=4), memory_bytes=300)
