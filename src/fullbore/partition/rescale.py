"""Rescale: layer costs of a profile, corrected by what the stages of a run really took.

A profile measures layers alone; in a run they share memory bandwidth, caches and cores, and a device may be slower than
the one that was profiled. The run tells what each *stage* took, so every layer of a stage is scaled by the same factor,
one factor for its forward, one for its backward (or one for each half of a split backward) and one for its R: the sums
then are exactly what was measured, and how a stage's time divides among its layers stays as profiled.

What a stage took more is put down to its layers, never to its device: a cut for devices of unequal speed this is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from fullbore.costs.layer import LayerCost
from fullbore.errors import CostsError
from fullbore.ir.action import Kind

__all__ = ["rescale"]


def rescale(
    layers: Sequence[LayerCost], *, layers_per_stage: Sequence[int], measured: Sequence[Mapping[Kind, int]]
) -> tuple[LayerCost, ...]:
    """The same layers, with the times of each stage adding up to what was measured.

    Args:
        layers_per_stage: the cut that was run.
        measured: for each stage, the time of one action of each kind that was seen. Kinds not seen stay as they are.

    Raises:
        CostsError: the cut that was run is not one of these layers.
    """
    if sum(layers_per_stage) != len(layers) or len(measured) != len(layers_per_stage):
        raise CostsError(
            f"the run and its profile do not fit together (the run cut {sum(layers_per_stage)} layers into "
            f"{len(layers_per_stage)} stages and measured {len(measured)}; the profile has {len(layers)} layers)"
        )
    found: list[LayerCost] = []
    for (first, end), times in zip(pairwise((0, *accumulate(layers_per_stage))), measured, strict=True):
        stage = layers[first:end]
        forward = [layer.forward_ns for layer in stage]
        halves = [layer.backward_input_ns for layer in stage], [layer.backward_weight_ns for layer in stage]
        again = [layer.recompute_ns for layer in stage]
        if Kind.FORWARD in times:
            forward = _scaled(forward, total=times[Kind.FORWARD])
        if Kind.RECOMPUTE in times:
            again = _scaled(again, total=times[Kind.RECOMPUTE])
        if Kind.BACKWARD in times:
            both = _scaled([part for pair in zip(*halves, strict=True) for part in pair], total=times[Kind.BACKWARD])
            halves = both[::2], both[1::2]
        else:
            kinds = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
            split = [
                _scaled(part, total=times[k]) if k in times else part for part, k in zip(halves, kinds, strict=True)
            ]
            halves = split[0], split[1]
        found += [
            replace(layer, forward_ns=f, backward_input_ns=i, backward_weight_ns=w, recompute_ns=r)
            for layer, f, i, w, r in zip(stage, forward, *halves, again, strict=True)
        ]
    return tuple(found)


def _scaled(times: Sequence[int], *, total: int) -> list[int]:
    """The same shares of another total, in whole nanoseconds that add up to it; equal shares where all were 0."""
    weights = list(times) if any(times) else [1] * len(times)
    whole = sum(weights)
    edges = [(2 * part * total + whole) // (2 * whole) for part in (0, *accumulate(weights))]
    return [end - first for first, end in pairwise(edges)]
