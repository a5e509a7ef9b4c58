"""Partition: which layers each stage holds, what each stage then takes, and one sentence on what decided it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fullbore.costs.layer import LayerCost
from fullbore.errors import PartitionError
from fullbore.partition.min_max import Allowed, min_max
from fullbore.partition.objective import Objective

__all__ = ["Partition", "evaluate", "solve"]


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in model order. Times are of one microbatch, forward and whole backward."""

    layers_per_stage: tuple[int, ...]
    boundaries: tuple[int, ...]
    """The first layer of each stage."""

    stage_time_ns: tuple[int, ...]
    bottleneck_stage: int
    """The first of the slowest stages."""

    bottleneck_ns: int
    imbalance: float
    """Slowest stage over mean stage; 1.0 is even, and 1.0 where all times are 0."""

    stage_memory_bytes: tuple[int, ...]
    """Parameters, optimizer state and the activations of the microbatches in flight."""

    objective: Objective | None
    """What was made even; None where the counts were given."""

    reason: str


def solve(
    layers: Sequence[LayerCost],
    *,
    num_stages: int,
    objective: Objective = Objective.TIME,
    in_flight: Sequence[int] = (),
    memory_bytes: int | None = None,
) -> Partition:
    """The best cut. ``in_flight``: microbatches whose activations each stage keeps at once, 1 where not given.

    Raises:
        PartitionError: fewer layers than stages, or no cut whose every stage fits ``memory_bytes``.
    """
    weights = [objective.weight(layer) for layer in layers]
    try:
        counts = min_max(weights, num_stages=num_stages, allowed=_within(layers, in_flight, memory_bytes))
    except PartitionError as error:
        if memory_bytes is None or len(layers) < num_stages:
            raise
        raise PartitionError(
            f"no cut into {num_stages} stages keeps every stage within {memory_bytes} bytes "
            f"(all layers together need {sum(_memory(layer, 1) for layer in layers)} bytes with one microbatch in "
            f"flight); use more stages, smaller microbatches or recomputation"
        ) from error
    return evaluate(layers, layers_per_stage=counts, objective=objective, in_flight=in_flight)


def evaluate(
    layers: Sequence[LayerCost],
    *,
    layers_per_stage: Sequence[int],
    objective: Objective | None = None,
    in_flight: Sequence[int] = (),
) -> Partition:
    """What the stages of a given cut take. Raises `PartitionError` where counts and layers do not match."""
    counts = tuple(layers_per_stage)
    if sum(counts) != len(layers) or min(counts, default=0) < 1:
        raise PartitionError(
            f"layers per stage are at least 1 each and add up to the number of layers "
            f"(given {list(counts)}, which add up to {sum(counts)}; the model has {len(layers)})"
        )
    edges = (0, *accumulate(counts))
    held = [layers[first:end] for first, end in pairwise(edges)]
    times = tuple(sum(layer.time_ns for layer in stage) for stage in held)
    slowest = times.index(max(times))
    mean = sum(times) / len(times)
    return Partition(
        layers_per_stage=counts,
        boundaries=edges[:-1],
        stage_time_ns=times,
        bottleneck_stage=slowest,
        bottleneck_ns=times[slowest],
        imbalance=times[slowest] / mean if mean else 1.0,
        stage_memory_bytes=tuple(
            sum(_memory(layer, _kept(in_flight, stage)) for layer in layers_of) for stage, layers_of in enumerate(held)
        ),
        objective=objective,
        reason=_reason(held, times, slowest, objective),
    )


def _kept(in_flight: Sequence[int], stage: int) -> int:
    return in_flight[stage] if stage < len(in_flight) else 1


def _memory(layer: LayerCost, kept: int) -> int:
    return layer.parameter_bytes + layer.optimizer_bytes + layer.activation_bytes * kept


def _within(layers: Sequence[LayerCost], in_flight: Sequence[int], memory_bytes: int | None) -> Allowed | None:
    if memory_bytes is None:
        return None
    fixed = (0, *accumulate(layer.parameter_bytes + layer.optimizer_bytes for layer in layers))
    kept = (0, *accumulate(layer.activation_bytes for layer in layers))

    def allowed(stage: int, first: int, end: int) -> bool:
        return fixed[end] - fixed[first] + (kept[end] - kept[first]) * _kept(in_flight, stage) <= memory_bytes

    return allowed


def _reason(
    held: Sequence[Sequence[LayerCost]], times: Sequence[int], slowest: int, objective: Objective | None
) -> str:
    stage, total = held[slowest], sum(times)
    names = stage[0].name if len(stage) == 1 else f"{stage[0].name} to {stage[-1].name}"
    over = times[slowest] * len(times) / total if total else 1.0
    fact = f"stage {slowest} ({names}) is the slowest with {over:.3g} times the mean"
    match objective:
        case None:
            return f"the counts were given; {fact}"
        case Objective.PARAMETERS:
            return f"parameters were made even, not time; {fact}"
        case Objective.TIME:
            if len(held) == 1:
                return "one stage holds every layer"
            if min(times) == max(times):
                return "all stages take the same time"
            if len(stage) == 1:
                return f"{fact}: one layer alone, so no cut is faster; more stages would not help"
            return f"{fact}; no contiguous cut has a faster slowest stage"
