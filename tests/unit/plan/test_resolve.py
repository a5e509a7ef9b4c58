from __future__ import annotations

import pytest

from fullbore.config.run import BatchConfig, PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.errors import ConfigError, PartitionError, ScheduleError
from fullbore.plan.apply import with_recipe
from fullbore.plan.resolve import resolve

NAMES = ("embed", *(f"block{i}" for i in range(8)), "head")
COSTS = tuple(
    LayerCost(name, 1, 1, 1, parameters=3, parameter_bytes=12, activation_bytes=9, output_bytes=2) for name in NAMES
)
HEAVY = (*COSTS[:-1], LayerCost("head", 5, 5, 5))


def config(**pipeline: object) -> RunConfig:
    return RunConfig(pipeline=PipelineConfig(**pipeline))  # type: ignore[arg-type]


def test_a_profile_decides_the_cut_and_predicts_the_step() -> None:
    found = resolve(config(microbatches=8), costs=HEAVY, layer_names=NAMES)
    assert found.recipe.layers_per_stage == (7, 3)
    assert found.recipe.schedule == "1f1b"
    assert found.predicted is not None
    assert found.predicted.bubble.ideal_ns == 8 * 21
    assert found.predicted.step_ns == found.predicted.timeline.compute_end_ns == 9 * 21
    assert found.predicted.bottleneck_stage == 0


def test_equal_counts_embed_and_head_as_layers_and_needs_no_costs() -> None:
    found = resolve(config(partition="equal"), costs=None, layer_names=NAMES)
    assert found.recipe.layers_per_stage == (5, 5)
    assert found.partition is None
    assert found.predicted is None
    assert found.reasons[1] == "partition: [5, 5] layers (layers were counted, not measured)"


@pytest.mark.parametrize("choice", ["profile", "parameters"])
def test_a_measured_cut_without_measurements_is_refused(choice: str) -> None:
    with pytest.raises(ConfigError, match=f'partition = "{choice}" needs the costs of the layers'):
        resolve(config(partition=choice), costs=None, layer_names=NAMES)


def test_a_list_is_kept_and_must_add_up() -> None:
    found = resolve(config(partition=(2, 8)), costs=COSTS, layer_names=NAMES)
    assert found.recipe.layers_per_stage == (2, 8)
    assert found.partition is not None
    assert found.partition.imbalance == 1.6
    with pytest.raises(PartitionError, match=r"10 layers, .* \(given \[2, 7\], which add up to 9\).*\[5, 5\]"):
        resolve(config(partition=(2, 7)), costs=None, layer_names=NAMES)


def test_parameters_are_made_even() -> None:
    assert resolve(config(partition="parameters"), costs=HEAVY, layer_names=NAMES).recipe.layers_per_stage == (5, 5)


def test_more_stages_than_layers_are_refused_with_the_most_there_can_be() -> None:
    with pytest.raises(PartitionError, match="use 3 stages or fewer"):
        resolve(config(stages=4), costs=COSTS[:3], layer_names=NAMES[:3])


def test_full_recomputation_spares_embed_and_head_and_pays_the_forward_again() -> None:
    plain = resolve(config(partition=(5, 5)), costs=COSTS, layer_names=NAMES)
    found = resolve(config(partition=(5, 5), recompute="full"), costs=COSTS, layer_names=NAMES)
    assert found.recipe.recompute == NAMES[1:-1]
    assert plain.partition is not None
    assert found.partition is not None
    assert plain.partition.stage_time_ns == (15, 15)
    assert found.partition.stage_time_ns == (19, 19)
    assert plain.partition.stage_memory_bytes[0] == 5 * 12 + 2 * 45
    assert found.partition.stage_memory_bytes[0] == 5 * 12 + 2 * (9 + 4 * 2)


def test_layers_to_recompute_can_be_named() -> None:
    found = resolve(config(recompute=("block2", "block1")), costs=COSTS, layer_names=NAMES)
    assert found.recipe.recompute == ("block1", "block2")
    with pytest.raises(ConfigError, match=r"'blok1' is none of them.*did you mean 'block1'"):
        resolve(config(recompute=("blok1",)), costs=COSTS, layer_names=NAMES)


def test_selective_recomputation_is_refused_as_not_built() -> None:
    with pytest.raises(ConfigError, match='"selective" is not built yet; use "none", "full" or a list'):
        resolve(config(recompute="selective"), costs=COSTS, layer_names=NAMES)


def test_chunks_that_the_schedule_does_not_have_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"1f1b has 1 stage per rank \(num_chunks=2\); use 1"):
        resolve(config(chunks=2), costs=COSTS, layer_names=NAMES)


def test_absent_chunks_are_the_schedules_own() -> None:
    for chunks, stages in ((None, 4), (2, 4), (3, 6)):
        found = resolve(config(schedule="interleaved-1f1b", chunks=chunks), costs=COSTS, layer_names=NAMES)
        assert (found.recipe.layout.chunks, found.recipe.layout.num_stages) == (stages // 2, stages)
        assert found.schedule.num_stages == len(found.recipe.layers_per_stage) == stages
    assert resolve(config(), costs=COSTS, layer_names=NAMES).recipe.layout.chunks == 1


def test_options_reach_the_schedule_and_the_recipe_and_come_back_from_it() -> None:
    asked = config(schedule="interleaved-1f1b", microbatches=3, options={"group_size": 3})
    found = resolve(asked, costs=COSTS, layer_names=NAMES)
    assert found.recipe.schedule_options == {"group_size": 3}
    assert str(found.schedule.orders[0][2]) == "0F2"
    again = with_recipe(RunConfig(), found.recipe)
    assert resolve(again, costs=None, layer_names=NAMES).schedule == found.schedule
    with pytest.raises(ScheduleError, match=r"num_microbatches=3, num_ranks=2\); use 2 or 4; or group_size=3"):
        resolve(config(schedule="interleaved-1f1b", microbatches=3), costs=COSTS, layer_names=NAMES)
    with pytest.raises(ScheduleError, match="1f1b has no option 'group_size'; it takes extra_warmup"):
        resolve(config(options={"group_size": 3}), costs=COSTS, layer_names=NAMES)


def test_a_list_has_one_number_for_each_stage_of_the_schedule() -> None:
    given = config(schedule="interleaved-1f1b", partition=(2, 3, 3, 2))
    assert resolve(given, costs=None, layer_names=NAMES).recipe.layers_per_stage == (2, 3, 3, 2)
    with pytest.raises(
        ConfigError, match=r"each of the 4 stages of interleaved-1f1b \(2 given: \[5, 5\]; .*chunks=2\)"
    ):
        resolve(config(schedule="interleaved-1f1b", partition=(5, 5)), costs=None, layer_names=NAMES)
    with pytest.raises(ConfigError, match=r"each of the 2 stages of 1f1b \(3 given"):
        resolve(config(partition=(3, 3, 4)), costs=None, layer_names=NAMES)


def test_three_blocks_are_too_few_layers_for_two_ranks_with_three_stages_each() -> None:
    """Refused before any process starts, with the most there can be. Embedding and head count: 5 layers."""
    names = ("embed", "block0", "block1", "block2", "head")
    with pytest.raises(PartitionError, match=r"num_stages=6, layers=5.*use 5 stages or fewer"):
        resolve(config(schedule="looped-bfs", chunks=3, partition="equal"), costs=None, layer_names=names)


def test_unknown_schedules_and_those_that_cannot_run_are_told_apart() -> None:
    with pytest.raises(ScheduleError, match="there is no schedule '1fb1'; did you mean '1f1b'"):
        resolve(config(schedule="1fb1"), costs=COSTS, layer_names=NAMES)
    with pytest.raises(ScheduleError, match="hanayo is drawn and simulated, and cannot be run; use one of: gpipe"):
        resolve(config(schedule="hanayo"), costs=COSTS, layer_names=NAMES)


def test_costs_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="profile this model again"):
        resolve(config(), costs=COSTS[:-1], layer_names=NAMES)


def test_microbatches_follow_from_the_batch_and_accumulation_repeats_the_pass() -> None:
    batch = BatchConfig(global_batch=24, microbatch_size=2, accumulation=3)
    found = resolve(RunConfig(batch=batch), costs=COSTS, layer_names=NAMES)
    assert (found.recipe.microbatches, found.recipe.global_batch) == (4, 24)
    assert found.predicted is not None
    assert found.predicted.step_ns == 3 * found.predicted.timeline.compute_end_ns
    assert found.reasons[0] == (
        "batch: 24 sequences a step = 2 a microbatch x 4 microbatches x 1 data ranks x 3 passes "
        "(what was absent follows from the rest of the batch)"
    )


def test_links_and_boundary_sizes_slow_the_prediction() -> None:
    free = resolve(config(microbatches=1), costs=COSTS, layer_names=NAMES)
    slow = resolve(config(microbatches=1), costs=COSTS, layer_names=NAMES, links=[Link(3, bytes_per_s=2_000_000_000)])
    assert free.predicted is not None
    assert slow.predicted is not None
    assert slow.predicted.step_ns == free.predicted.step_ns + 2 * (3 + 1)


def test_two_streams_are_cut_once_and_predicted_from_both() -> None:
    """Rank 0 holds the first run of layers and, for the other stream, the second."""
    both = config(schedule="dualpipe", microbatches=4)
    found = resolve(both, costs=HEAVY, layer_names=NAMES)
    assert (found.recipe.layout.num_stages, found.recipe.layout.streams) == (4, 2)
    first, second = found.recipe.layers_per_stage
    assert first + second == 10
    assert found.predicted is not None
    totals = [stage.total for stage in found.predicted.stage_costs]
    assert totals == [3 * first, 3 * second + 12, 3 * second + 12, 3 * first]
    assert resolve(with_recipe(both, found.recipe), costs=HEAVY, layer_names=NAMES).recipe == found.recipe
    linked = resolve(both, costs=COSTS, layer_names=NAMES, links=[Link(5)])
    free = resolve(both, costs=COSTS, layer_names=NAMES)
    assert linked.predicted is not None
    assert free.predicted is not None
    assert linked.predicted.step_ns > free.predicted.step_ns
    with pytest.raises(ConfigError, match=r"for each of the 2 stages of dualpipe in one direction \(4 given"):
        resolve(config(schedule="dualpipe", microbatches=4, partition=(1, 4, 4, 1)), costs=None, layer_names=NAMES)
    even = config(schedule="dualpipe", microbatches=4, partition="equal")
    assert resolve(even, costs=None, layer_names=NAMES).recipe.layers_per_stage == (5, 5)
