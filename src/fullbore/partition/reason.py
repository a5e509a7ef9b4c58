"""The reason of a partition: one sentence on which stage sets the rhythm, why, and what decided the cut."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fullbore.costs.layer import LayerCost
from fullbore.partition.objective import PartitionObjective

__all__ = ["reason_of"]

_HEAVY = 1.5
"""A layer above this many times the median layer is named as the cause."""


def reason_of(
    held: Sequence[Sequence[LayerCost]], *, objective: PartitionObjective | None, decided: str | None = None
) -> str:
    """``held``: the layers of every stage. ``decided``: what to say in place of "no cut has a faster slowest stage";
    without an objective, of "as given"."""
    times = [sum(layer.time_ns for layer in stage) for stage in held]
    slowest = times.index(max(times))
    stage, total = held[slowest], sum(times)
    names = stage[0].name if len(stage) == 1 else f"{stage[0].name} to {stage[-1].name}"
    over = times[slowest] * len(times) / total if total else 1.0
    fact = f"stage {slowest} ({names}) is the slowest with {over:.2f} times the mean{_cause(held, slowest)}"
    match objective:
        case None:
            return f"{decided or 'as given'}; {fact}"
        case PartitionObjective.PARAMETERS:
            return f"parameters were made even, not time; {fact}"
        case PartitionObjective.TIME:
            if len(held) == 1:
                return "one stage holds every layer"
            if min(times) == max(times):
                return "all stages take the same time"
            if decided is not None:
                return f"{fact}; {decided}"
            if len(stage) == 1:
                return f"{fact}: one layer alone, so no cut is faster; more stages would not help"
            return f"{fact}; no contiguous cut has a faster slowest stage"


def _cause(held: Sequence[Sequence[LayerCost]], slowest: int) -> str:
    """The layer that makes the slowest stage slow, where one stands out of the model and shares the stage."""
    heaviest = max(held[slowest], key=lambda layer: layer.time_ns)
    usual = median(layer.time_ns for stage in held for layer in stage)
    if len(held[slowest]) == 1 or heaviest.time_ns <= _HEAVY * usual:
        return ""
    return f", {heaviest.time_ns / sum(layer.time_ns for layer in held[slowest]):.0%} of it in {heaviest.name} alone"
