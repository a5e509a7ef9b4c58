"""A partition is about the order that a run of its recipe makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory
from fullbore.costs.streams import stages_over
from fullbore.ir.recipe import Recipe
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import NothingFits
from fullbore.plan.apply import with_recipe
from fullbore.plan.from_run import RunCosts
from fullbore.plan.partition import PlannedPartition, planned_partition
from fullbore.plan.recompute import with_recompute
from fullbore.plan.resolve import ResolvedRecipe, resolve
from fullbore.simulate.memory import peak_bytes, peak_shares
from fullbore.synthesis.catalogue import CATALOGUE

NAMES = ("embed", *(f"block{index}" for index in range(6)), "head")
LAYERS = (
    *(LayerCost(name, 10, 12, 8, activation_bytes=10, output_bytes=2) for name in NAMES[:-1]),
    LayerCost("head", 25, 30, 20, activation_bytes=16),
)
COST_DRIVEN = [name for name, entry in CATALOGUE.items() if entry.cost_driven]


def cut(
    *,
    ranks: int = 4,
    microbatches: int | None = 12,
    schedule: str | None = "auto",
    ran: Recipe | None = None,
) -> PlannedPartition:
    layers = LAYERS if ran is None else with_recompute(LAYERS, names=ran.recompute, ahead=ran.recompute_ahead)
    return planned_partition(
        RunCosts(layers, ran, None, 2),
        num_ranks=ranks,
        num_chunks=None,
        num_microbatches=microbatches,
        schedule=schedule,
        objective=PartitionObjective.TIME,
        memory_bytes=None,
    )


def run(**pipeline: object) -> ResolvedRecipe:
    asked = RunConfig(pipeline=PipelineConfig(**pipeline))  # type: ignore[arg-type]
    return resolve(asked, costs=LAYERS, layer_names=NAMES)


def require_same(found: PlannedPartition, ran: ResolvedRecipe) -> None:
    """The cut, the order, and what is said about them."""
    assert ran.predicted is not None
    assert found.recipe.layers_per_stage == ran.recipe.layers_per_stage
    assert found.schedule == ran.schedule
    assert found.makespan_ns == ran.predicted.bubble.makespan_ns
    held = [LAYERS[first:end] for first, end in pairwise(ran.recipe.boundaries)]
    if not ran.recipe.recompute:
        memory = stages_over([StageMemory.of_layers(stage) for stage in held], ran.schedule.placement)
        assert found.rank_memory_bytes == peak_bytes(ran.schedule, stages=memory)


@pytest.mark.parametrize("name", [*COST_DRIVEN, "1f1b", "dualpipe"])
def test_it_is_about_the_order_of_a_run(name: str) -> None:
    found = cut(schedule=name)
    require_same(found, run(stages=4, microbatches=12, schedule=name, partition="profile"))
    again = with_recipe(RunConfig(), found.recipe)
    require_same(found, resolve(again, costs=LAYERS, layer_names=NAMES))
    assert again.pipeline.memory_cap == found.recipe.memory_cap


def test_auto_keeps_to_the_memory_of_a_run() -> None:
    found = cut()
    assert max(peak_shares(found.schedule)) <= 4
    per_rank = [max(end - first for first, end in pairwise(found.recipe.boundaries))]
    assert max(found.rank_memory_bytes) <= 4 * 10 * max(per_rank) + 6 * 4
    assert max(found.found.stage_memory_bytes) == max(found.rank_memory_bytes), "one stage a rank"


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_keeps_its_cap_and_its_recomputation(ahead: bool) -> None:
    ran = run(
        stages=4, microbatches=12, schedule="auto", memory_cap=2.0, recompute=("block1", "head"), recompute_ahead=ahead
    )
    found = cut(ran=ran.recipe, schedule=None, microbatches=None)
    require_same(found, ran)
    assert found.recipe == ran.recipe
    assert cut(ran=ran.recipe, schedule=None, ranks=3).recipe.memory_cap == 3.0, "what a run of three ranks gives auto"
    assert cut(ran=ran.recipe, schedule="zb-2p").recipe.memory_cap == 8.0


def two_chunks(name: str, *, memory_bytes: int, microbatches: int, layers: Sequence[tuple[int, int, int, int]]) -> int:
    """What the fullest of two ranks needs. ``layers``: the three times, and the bytes that a microbatch keeps."""
    costs = tuple(LayerCost(f"l{i}", *times, activation_bytes=kept) for i, (*times, kept) in enumerate(layers))
    found = planned_partition(
        RunCosts(costs, None, None, 1),
        num_ranks=2,
        num_chunks=2,
        num_microbatches=microbatches,
        schedule=name,
        objective=PartitionObjective.TIME,
        memory_bytes=memory_bytes,
    )
    return max(found.rank_memory_bytes)


def test_a_limit_holds_for_the_order_that_runs() -> None:
    """The first cut fits in the order of equal stages, and not in its own. Another one does, or none that was tried."""
    layers = [(40, 30, 5, 40), (5, 10, 10, 40), (5, 5, 30, 10), (40, 30, 10, 10), (40, 5, 5, 40), (5, 30, 10, 40)]
    assert two_chunks("zb-v", memory_bytes=224, microbatches=8, layers=layers) <= 224
    layers = [
        *((5, 5, 30, 10), (40, 5, 30, 1), (5, 5, 30, 1), (10, 10, 5, 1)),
        *((5, 10, 10, 10), (10, 5, 30, 40), (5, 5, 10, 1), (10, 10, 5, 1)),
    ]
    with pytest.raises(NothingFits, match="within 85 bytes once auto is made for its stages") as no:
        two_chunks("auto", memory_bytes=85, microbatches=5, layers=layers)
    assert no.value.nearest_bytes > 85
