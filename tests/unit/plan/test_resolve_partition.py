"""The cut of a run file is decided by its schedule, its microbatches and its links, not by the slowest stage alone."""

from __future__ import annotations

import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.plan.resolve import ResolvedRecipe, resolve


def resolved(layers: list[LayerCost], *, stages: int, microbatches: int, links: list[Link]) -> ResolvedRecipe:
    config = RunConfig(pipeline=PipelineConfig(stages=stages, microbatches=microbatches, partition="profile"))
    return resolve(config, costs=layers, layer_names=[layer.name for layer in layers], links=links)


def test_few_microbatches_may_want_another_cut_than_many() -> None:
    layers = [LayerCost(f"layer{i}", time, time, 0) for i, time in enumerate((4, 5, 5, 4, 4, 6))]
    few, many = (resolved(layers, stages=3, microbatches=m, links=[]) for m in (3, 48))
    assert (few.recipe.layers_per_stage, many.recipe.layers_per_stage) == ((3, 2, 1), (2, 2, 2))
    assert "it is the fastest in a simulation of 1f1b with 3 microbatches" in few.reasons[1]


@pytest.mark.parametrize(
    ("choice", "why", "unmeasured"),
    [
        ("equal", "cut by count, not by time", "layers were counted, not measured"),
        ((3, 3), "as given", "as given"),
    ],
)
def test_a_cut_that_was_given_is_not_said_to_be_by_count(
    choice: tuple[int, ...] | str, why: str, unmeasured: str
) -> None:
    """A list, as a recipe has one too, may be by time."""
    layers = [LayerCost(f"layer{i}", time, time, 0) for i, time in enumerate((4, 4, 4, 4, 4, 8))]
    config = RunConfig(pipeline=PipelineConfig(stages=2, microbatches=4, partition=choice))  # type: ignore[arg-type]
    names = [layer.name for layer in layers]
    fact = "stage 1 (layer3 to layer5) is the slowest with 1.14 times the mean"
    measured = resolve(config, costs=layers, layer_names=names).reasons[1]
    assert measured.startswith(f"partition: [3, 3] layers ({why}; {fact}")
    assert resolve(config, costs=None, layer_names=names).reasons[1] == f"partition: [3, 3] layers ({unmeasured})"


def test_links_are_part_of_what_decides() -> None:
    sizes = (9000, 1, 9000, 9000, 0)
    layers = [LayerCost(f"layer{i}", 10, 10, 0, output_bytes=size) for i, size in enumerate(sizes)]
    free = resolved(layers, stages=2, microbatches=2, links=[])
    slow = resolved(layers, stages=2, microbatches=2, links=[Link(0, bytes_per_s=10**11)])
    assert (free.recipe.layers_per_stage, slow.recipe.layers_per_stage) == ((3, 2), (2, 3))
