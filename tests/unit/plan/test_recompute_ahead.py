"""`pipeline.recompute_ahead`: an R before each backward, in the schedule that runs and in what is predicted for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost, costs_document
from fullbore.costs.stage import StageCost
from fullbore.errors import ConfigError, CostsError, RecipeError, ScheduleError
from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.codec import format_schedule
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule import Schedule
from fullbore.partition.judge import Judge
from fullbore.partition.rescale import rescale
from fullbore.plan.apply import with_recipe
from fullbore.plan.check import check_before_start
from fullbore.plan.resolve import ResolvedRecipe, resolve
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from tests.timetable import rows, timetable

NAMES = ("embed", "block0", "block1", "block2", "block3", "head")
COSTS = tuple(LayerCost(name, 2, 1, 1, activation_bytes=9, output_bytes=2) for name in NAMES)


def config(**pipeline: object) -> RunConfig:
    return RunConfig(pipeline=PipelineConfig(**pipeline))  # type: ignore[arg-type]


def resolved(**pipeline: object) -> ResolvedRecipe:
    return resolve(config(recompute="full", **pipeline), costs=COSTS, layer_names=NAMES)


def recomputing(schedule: Schedule) -> set[int]:
    """The stages that have an R before each of their backwards, and no other has one."""
    found = [action.stage for order in schedule.orders for action in order if action.kind is Kind.RECOMPUTE]
    behind = [action.stage for order in schedule.orders for action in order if action.kind.makes_input_gradient]
    assert all(found.count(stage) == behind.count(stage) for stage in found)
    return set(found)


def test_the_drawing_of_the_pass_is_what_a_run_predicts() -> None:
    layers = (LayerCost("a", 1, 1, 0), LayerCost("b", 1, 1, 0))
    ahead, inside = (
        resolve(
            config(microbatches=2, recompute=("a", "b"), recompute_ahead=one), costs=layers, layer_names=("a", "b")
        ).predicted
        for one in (True, False)
    )
    assert ahead is not None
    assert inside is not None
    assert timetable(ahead.timeline) == rows("""
        0 1 0r .  0' 1r .  1'
        . 0 0r 0' 1  1r 1' .
    """)
    assert (ahead.step_ns, inside.step_ns) == (8, 9)
    assert ahead.stage_costs == (StageCost(1, 1, 0, 1),) * 2
    assert inside.stage_costs == (StageCost(1, 2, 0, 0),) * 2


def test_only_stages_with_a_layer_to_recompute_have_an_r_and_it_takes_the_time_of_these_layers() -> None:
    """ "full" leaves out embed and head."""
    found = resolved(stages=3, partition=(1, 4, 1), microbatches=4, recompute_ahead=True)
    assert recomputing(found.schedule) == {1}
    assert found.predicted is not None
    assert found.predicted.stage_costs == (StageCost(2, 1, 1, 0), StageCost(8, 4, 4, 8), StageCost(2, 1, 1, 0))
    assert found.reasons[-1] == "recompute: 4 layers run their forward again, before the backward, as an action R"
    some = resolve(
        config(partition=(3, 3), recompute=("block0",), recompute_ahead=True), costs=COSTS, layer_names=NAMES
    )
    assert recomputing(some.schedule) == {0}
    assert some.predicted is not None
    assert some.predicted.stage_costs[0] == StageCost(6, 3, 3, 2)


@pytest.mark.parametrize(
    ("name", "steps_ns"),
    [
        *(("1f1b", (76, 80)), ("zb-h1", (70, 74)), ("interleaved-1f1b", (72, 76)), ("gpipe", (76, 80))),
        *(("auto", (70, 74)), ("zb-v", (77, 79)), ("dualpipe", (64, 64)), ("chimera", (64, 64))),
    ],
)
def test_it_is_of_any_schedule_and_never_slower_than_inside_the_backward(name: str, steps_ns: tuple[int, int]) -> None:
    """Of the same cut: one that is chosen by time is chosen for either by itself. Two streams leave nothing to gain:
    64 is a rank's work."""
    ahead, inside = (
        resolved(schedule=name, microbatches=4, partition="equal", recompute_ahead=one) for one in (True, False)
    )
    assert recomputing(ahead.schedule)
    assert not recomputing(inside.schedule)
    assert ahead.recipe.recompute_ahead
    assert not inside.recipe.recompute_ahead
    assert ahead.predicted is not None
    assert inside.predicted is not None
    assert sum(ahead.predicted.bubble.busy_ns) == sum(inside.predicted.bubble.busy_ns), "the work is the same"
    assert ahead.recipe.layers_per_stage == inside.recipe.layers_per_stage
    assert (ahead.predicted.step_ns, inside.predicted.step_ns) == steps_ns


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_where_the_layers_are_there_twice_both_copies_have_it_right_before_their_backward(name: str) -> None:
    """The layers of stage 1 are those of stage 2 as well. Pairs of actions have come apart."""
    found = resolve(
        config(schedule=name, microbatches=4, partition=(3, 3), recompute=("block2",), recompute_ahead=True),
        costs=COSTS,
        layer_names=NAMES,
    )
    orders = found.schedule.orders
    again = [action for order in orders for action in order if action.kind is Kind.RECOMPUTE]
    assert {action.stage for action in again} == {1, 2}
    assert len(again) == 4, "each of the four microbatches goes one way"
    followed = [(a, b) for order in orders for a, b in pairwise(order) if a.kind is Kind.RECOMPUTE]
    assert all(b.kind.makes_input_gradient and (a.stage, a.microbatch) == (b.stage, b.microbatch) for a, b in followed)
    assert found.predicted is not None
    assert [cost.recompute for cost in found.predicted.stage_costs] == [0, 2, 2, 0]


def test_the_cut_knows_of_it() -> None:
    """A rank recomputes as long as without; so the weights, and the cut of equal layers, are those of inside."""
    ahead, inside = (resolved(microbatches=8, recompute_ahead=one).partition for one in (True, False))
    assert ahead is not None
    assert inside is not None
    assert ahead.stage_time_ns == inside.stage_time_ns
    assert ahead.stage_memory_bytes == inside.stage_memory_bytes


def test_a_recipe_brings_it_back() -> None:
    found = resolved(recompute_ahead=True)
    again = resolve(with_recipe(RunConfig(), found.recipe), costs=COSTS, layer_names=NAMES)
    assert again.schedule == found.schedule
    assert again.predicted == found.predicted


@pytest.mark.parametrize("recompute", ["none", ()])
def test_without_a_layer_to_recompute_it_is_refused(recompute: object) -> None:
    with pytest.raises(ConfigError, match='names no layer; set it to "full" or a list of layer names, or leave rec'):
        config(recompute=recompute, recompute_ahead=True)
    with pytest.raises(RecipeError, match="recompute names no layer; name some, or set it to false"):
        Recipe(Layout(2), 1, 4, (3, 3), "1f1b", recompute_ahead=True)


def test_where_the_model_has_only_ends_full_is_nothing() -> None:
    found = resolve(
        config(recompute="full", recompute_ahead=True, partition="equal"), costs=None, layer_names=("embed", "head")
    )
    assert found.schedule == get("1f1b").build(2, num_microbatches=8)
    assert not found.recipe.recompute_ahead


def test_a_file_may_have_them_already(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    ours = recompute_ahead(get("1f1b").build(2, num_microbatches=4))
    path.write_text(format_schedule(ours))
    for key in (True, False):
        found = resolved(schedule=str(path), microbatches=4, recompute_ahead=key)
        assert found.schedule.orders == ours.orders
        assert found.recipe.recompute_ahead
        assert found.predicted is not None
        assert found.predicted.stage_costs == (StageCost(6, 3, 3, 4),) * 2
    with pytest.raises(ScheduleError, match=r"mine.txt has recomputations \(R\), and no layer of the run recomputes"):
        check_before_start(config(schedule=str(path), microbatches=4))
    path.write_text(format_schedule(recompute_ahead(get("1f1b").build(2, num_microbatches=4), stages=[StageIndex(1)])))
    with pytest.raises(ScheduleError, match=r"mine.txt has 4 recomputations \(R\) for 8 backwards; to be predicted"):
        check_before_start(config(schedule=str(path), microbatches=4, recompute="full"))


def test_what_an_r_took_is_shared_out_by_the_layers_that_recompute_and_no_file_has_it() -> None:
    layers = (LayerCost("a", 4, 4, 4, recompute_ns=4), LayerCost("b", 4, 4, 4), LayerCost("c", 2, 2, 2, recompute_ns=2))
    found = rescale(layers, layers_per_stage=[3], measured=[{Kind.RECOMPUTE: 60, Kind.BACKWARD: 40}])
    assert [layer.recompute_ns for layer in found] == [40, 0, 20]
    assert StageCost.of_layers(found) == StageCost(10, 20, 20, 60)
    assert StageCost(10, 20, 20, 60).slowed(1.5) == StageCost(15, 30, 30, 90)
    assert all("recompute_ns" not in layer for layer in costs_document(found)["layers"])


def test_a_time_below_nothing_is_refused() -> None:
    with pytest.raises(CostsError, match="times must be at least 0"):
        StageCost(1, 1, 1, -1)
    assert StageCost(3, 1, 1).of(Kind.RECOMPUTE) == 3, "as long as the forward, where nobody says"


def test_cuts_are_judged_as_the_simulator_has_them() -> None:
    """Layers that recompute are dearer, and in another action."""
    again = (5, 0, 3, 0, 4, 0)
    layers = [replace(layer, recompute_ns=time) for layer, time in zip(COSTS, again, strict=True)]
    schedule = recompute_ahead(get("1f1b").build(3, num_microbatches=4))
    cuts = [(a, b, 6 - a - b) for a in range(1, 5) for b in range(1, 6 - a)]
    scores = Judge(layers, schedule=schedule).scores(np.array(cuts, np.int64))
    for cut, score in zip(cuts, scores, strict=True):
        edges = (0, *accumulate(cut))
        stages = [StageCost.of_layers(layers[first:end]) for first, end in pairwise(edges)]
        assert score.makespan == simulate(schedule, costs=stages).compute_end_ns
        assert score.bottleneck == max(stage.total + (stage.recompute or 0) for stage in stages)
