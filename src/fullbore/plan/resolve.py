"""From a run file to a recipe: what is given is kept, what is absent is chosen, and each choice has its reason.

The batch sizes come from `fullbore.config.batch`, the cut from `fullbore.partition`, the order from the registry, and
the prediction from the simulator with the measured costs of the layers. Nothing here measures or computes a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fullbore.config.run import RunConfig, batch_sizes
from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import links_over, sizes_over, stages_over
from fullbore.errors import ConfigError, PartitionError
from fullbore.ir.placement import Placement
from fullbore.ir.recipe import Recipe
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.equal import equal
from fullbore.partition.holding import stages_holding
from fullbore.partition.in_flight import in_flight
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.partition import Partition, evaluate
from fullbore.plan.recompute import recomputed_layers, with_recompute
from fullbore.plan.schedule import AskedSchedule, asked_schedule
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import Bubble, bubble_of
from fullbore.timeline.span import Timeline

__all__ = ["Prediction", "ResolvedRecipe", "resolve"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the costs say the step will look like."""

    timeline: Timeline
    """One pass through the pipeline."""

    bubble: Bubble
    step_ns: int
    """All passes of an optimizer step, without the flush."""

    bottleneck_stage: int
    stage_costs: tuple[StageCost, ...]
    """What each stage takes for one microbatch, recomputation included: in the backward, or by itself where it is
    ahead."""


@dataclass(frozen=True, slots=True)
class ResolvedRecipe:
    """A recipe that can run, with what it was decided on."""

    recipe: Recipe
    schedule: Schedule
    partition: Partition | None
    """None where no costs were given."""

    predicted: Prediction | None
    """None where no costs were given."""

    reasons: tuple[str, ...]
    """One sentence for each thing that was decided."""


def resolve(
    config: RunConfig,
    *,
    costs: Sequence[LayerCost] | None,
    layer_names: Sequence[str],
    links: Sequence[Link] = (),
    asked: AskedSchedule | None = None,
) -> ResolvedRecipe:
    """Decide everything a run needs.

    Args:
        costs: of the layers, without recomputation, for one microbatch; None where nothing was measured.
        layer_names: of the model, in order; those of ``costs`` must be the same.
        links: one for each stage boundary of a stream, as far as known.
        asked: the configuration's schedule, where the caller has looked it up.

    Raises:
        ConfigError: the run file asks for what does not exist or does not fit the model; says what would.
        PartitionError: layers and stages do not fit.
        ScheduleError: the schedule does not exist, or not for these sizes.
    """
    if costs is not None and [layer.name for layer in costs] != list(layer_names):
        raise ConfigError(
            f"the costs are of other layers than the model's (costs: {[layer.name for layer in costs]}, "
            f"model: {list(layer_names)}); profile this model again"
        )
    sizes, pipeline = batch_sizes(config), config.pipeline
    asked = asked_schedule(config) if asked is None else asked
    schedule = asked.make()
    recomputed = recomputed_layers(pipeline.recompute, layer_names=layer_names)
    ahead = bool(recomputed) and (pipeline.recompute_ahead or schedule.recomputes)
    layers = None if costs is None else with_recompute(costs, names=recomputed, ahead=ahead)
    cut_for = recompute_ahead(schedule) if ahead and not schedule.recomputes else schedule
    counts, partition = _cut(config, layers=layers, schedule=cut_for, num_layers=len(layer_names), links=links)
    stages = None if layers is None else _Stages.of(layers, counts, links=links, placement=schedule.placement)
    if stages is not None and asked.follows_costs:
        inside = [cost.recomputing_inside for cost in stages.costs]
        schedule = asked.make(stages=inside, links=stages.links, message_bytes=stages.message_bytes)
    if ahead and not schedule.recomputes:
        held = stages_holding(
            recomputed, layer_names=layer_names, layers_per_stage=counts, placement=schedule.placement
        )
        schedule = recompute_ahead(schedule, stages=held)
    recipe = Recipe(
        layout=asked.layout(config.mesh),
        microbatch_size=sizes.microbatch_size,
        microbatches=sizes.microbatches,
        layers_per_stage=counts,
        schedule=pipeline.schedule,
        accumulation=sizes.accumulation,
        recompute=recomputed,
        recompute_ahead=ahead,
        schedule_options=dict(pipeline.options),
        memory_cap=None if asked.memory_cap is None else float(asked.memory_cap),
    )
    predicted = None
    if stages is not None and partition is not None:
        predicted = _predict(recipe, schedule, stages=stages, partition=partition)
    return ResolvedRecipe(recipe, schedule, partition, predicted, _reasons(config, recipe, partition))


@dataclass(frozen=True, slots=True)
class _Stages:
    """What the layers of a cut add up to, over all stages of a placement."""

    costs: tuple[StageCost, ...]
    message_bytes: tuple[int, ...]
    """Over each boundary."""

    links: tuple[Link, ...]
    """Of each boundary; none: all free."""

    @classmethod
    def of(
        cls, layers: Sequence[LayerCost], counts: Sequence[int], *, links: Sequence[Link], placement: Placement
    ) -> _Stages:
        edges = list(accumulate(counts, initial=0))
        costs = tuple(StageCost.of_layers(layers[first:end]) for first, end in pairwise(edges))
        sizes = tuple(layers[end - 1].output_bytes for end in edges[1:-1])
        return cls(stages_over(costs, placement), sizes_over(sizes, placement), links_over(links, placement))


def _cut(
    config: RunConfig,
    *,
    layers: Sequence[LayerCost] | None,
    schedule: Schedule,
    num_layers: int,
    links: Sequence[Link],
) -> tuple[tuple[int, ...], Partition | None]:
    choice, num_stages = config.pipeline.partition, schedule.placement.stages_per_stream
    if choice in ("profile", "parameters"):
        if layers is None:
            raise ConfigError(
                f'pipeline.partition = "{choice}" needs the costs of the layers, and none were measured; '
                'profile first, or use "equal" or a list of layers per stage'
            )
        objective = PartitionObjective.TIME if choice == "profile" else PartitionObjective.PARAMETERS
        best = best_partition(layers, schedule=schedule, objective=objective, links=links)
        return best.layers_per_stage, best
    if isinstance(choice, str):
        counts, decided = equal(num_layers, num_stages=num_stages), "cut by count, not by time"
    else:
        counts, decided = choice, "as given"
    if sum(counts) != num_layers:
        raise PartitionError(
            f"pipeline.partition must add up to the model's {num_layers} layers, embed and head among them "
            f"(given {list(counts)}, which add up to {sum(counts)}); an equal split is "
            f"{list(equal(num_layers, num_stages=num_stages))}"
        )
    if layers is None:
        return counts, None
    return counts, evaluate(
        layers,
        layers_per_stage=counts,
        in_flight=in_flight(schedule),
        placement=schedule.placement,
        decided=decided,
    )


def _predict(
    recipe: Recipe,
    schedule: Schedule,
    *,
    stages: _Stages,
    partition: Partition,
) -> Prediction:
    timeline = simulate(schedule, costs=stages.costs, links=stages.links, message_bytes=stages.message_bytes)
    bubble = bubble_of(timeline)
    step_ns = bubble.makespan_ns * recipe.accumulation
    return Prediction(timeline, bubble, step_ns, partition.bottleneck_stage, stages.costs)


def _reasons(config: RunConfig, recipe: Recipe, partition: Partition | None) -> tuple[str, ...]:
    given = config.batch.global_batch, config.batch.microbatch_size, config.pipeline.microbatches
    said = "as given" if None not in given else "what was absent follows from the rest of the batch"
    kind = "sequences" if config.data.documents == "joined" else "documents"
    batch = (
        f"batch: {recipe.global_batch} {kind} a step = {recipe.microbatch_size} a microbatch x "
        f"{recipe.microbatches} microbatches x {recipe.layout.data} data ranks x {recipe.accumulation} passes ({said})"
    )
    counts = list(recipe.layers_per_stage)
    counted = "layers were counted, not measured" if config.pipeline.partition == "equal" else "as given"
    why = counted if partition is None else partition.reason
    reasons = [batch, f"partition: {counts} layers ({why})"]
    if recipe.recompute:
        where = "before the backward, as an action R" if recipe.recompute_ahead else "counted in the backward"
        reasons.append(f"recompute: {len(recipe.recompute)} layers run their forward again, {where}")
    return tuple(reasons)
