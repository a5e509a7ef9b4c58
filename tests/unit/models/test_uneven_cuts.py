"""Layers need not divide by stages: each is placed and built exactly once, and no stage is longer than it must be."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
import torch
from torch import nn

from fullbore.costs.stage import StageCost
from fullbore.ids import Rank
from fullbore.models.sequential import sequential_model
from fullbore.partition.equal import equal
from fullbore.partition.min_max import min_max
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from tests.unit.models.chained import build

CASES = [
    (80, 16, 2, 3),
    (40, 8, 2, 3),
    (40, 8, 3, 2),
    (30, 4, 1, 8),
    (10, 3, 1, 4),
    (27, 4, 1, 7),
]
"""Layers, ranks, stages a rank, and the fewest layers that the longest stage can have."""


@pytest.mark.parametrize(("layers", "ranks", "chunks", "longest"), CASES)
def test_every_layer_is_built_exactly_once(layers: int, ranks: int, chunks: int, longest: int) -> None:
    """Megatron-LM #468, #1304: 80 layers over 16 ranks with 2 chunks lost 16, 30 over 4 lost 2, 10 over 3 two."""
    with torch.device("meta"):
        model = sequential_model(nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers))))
    schedule = get("looped-bfs" if chunks > 1 else "1f1b").build(
        ranks, num_microbatches=ranks, num_chunks=chunks if chunks > 1 else None
    )
    for counts in (
        equal(layers, num_stages=schedule.num_stages),
        min_max([1] * layers, num_stages=schedule.num_stages),
    ):
        assert max(counts) == longest
        stages = build(model, [0, *accumulate(counts)])
        held = [stages[s] for rank in range(ranks) for s in schedule.placement.stages_of(Rank(rank))]
        assert Counter(name for stage in held for name in stage.layers) == Counter(model.layer_names)
        built = sum(weight.numel() for stage in held for weight in stage.weights.values())
        assert built == model.num_parameters == layers * 6


LLAMA_70B = (2, *[2] * 34, 3, *[2] * 3, 1)
"""Blocks a stage of a published layout: 80 blocks, p = 8, v = 5 (Megatron-Bridge PR #5391). The rank with the head has
one block less."""


def test_an_uneven_layout_beats_ten_blocks_everywhere() -> None:
    """With a head of about one block."""
    schedule = get("interleaved-1f1b").build(8, num_microbatches=16, num_chunks=5)
    by_rank = [sum(LLAMA_70B[s] for s in schedule.placement.stages_of(Rank(rank))) for rank in range(8)]
    assert (len(LLAMA_70B), sum(LLAMA_70B), by_rank) == (40, 80, [10, 10, 10, 11, 10, 10, 10, 9])
    for microbatches in (8, 32):
        order = get("interleaved-1f1b").build(8, num_microbatches=microbatches, num_chunks=5)
        uneven, even = (simulate(order, costs=_costs(counts)).compute_end_ns for counts in (LLAMA_70B, [2] * 40))
        assert uneven < even


def _costs(blocks: tuple[int, ...] | list[int], *, block: int = 6, embed: int = 1, head: int = 6) -> list[StageCost]:
    times = [count * block for count in blocks]
    times[0] += embed
    times[-1] += head
    return [StageCost(time, time, time) for time in times]
