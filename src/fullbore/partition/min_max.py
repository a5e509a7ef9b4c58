"""The exact contiguous min-max partition: cut L weights into p runs so that the heaviest run is as light as possible.

No run is empty. Among all cuts with the best bottleneck the most even one is taken (least sum of squared run weights,
then of squared run lengths), and among those the one with more layers up front: 1 1 1 1 1 over 4 is 2 1 1 1.

Two dynamic programs over prefix sums, both from the last layer back: the first finds the bottleneck B, the second
looks only at cuts within B. O(p L^2) at worst; both stop a run as soon as it is heavier than what is already known,
so 500 layers over 64 stages take 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from fullbore.errors import PartitionError

__all__ = ["Allowed", "min_max", "refuse_impossible"]

Allowed = Callable[[int, int, int], bool]
"""(stage, first layer, end layer) -> may this stage hold these layers? Once it says no, longer runs are no too."""


def min_max(weights: Sequence[int], *, num_stages: int, allowed: Allowed | None = None) -> tuple[int, ...]:
    """Layers per stage.

    Raises:
        PartitionError: fewer layers than stages, a negative weight, or nothing that ``allowed`` lets pass.
    """
    refuse_impossible(num_layers=len(weights), num_stages=num_stages)
    if min(weights) < 0:
        raise PartitionError(f"weights must be at least 0 (layer {weights.index(min(weights))}: {min(weights)})")
    prefix = (0, *accumulate(weights))
    may = allowed or (lambda stage, first, end: True)
    bottleneck = _bottleneck(prefix, num_stages=num_stages, may=may)
    if bottleneck is None:
        raise PartitionError(f"no cut of {len(weights)} layers into {num_stages} stages keeps within the limits")
    return _most_even(prefix, num_stages=num_stages, bottleneck=bottleneck, may=may)


def refuse_impossible(*, num_layers: int, num_stages: int) -> None:
    """Every stage holds at least one layer."""
    if num_stages < 1:
        raise PartitionError(f"a partition needs at least one stage (num_stages={num_stages})")
    if num_layers < num_stages:
        raise PartitionError(
            f"every stage holds at least one layer, so num_stages is at most the number of layers "
            f"(num_stages={num_stages}, layers={num_layers}); use {max(num_layers, 1)} stages or fewer"
        )


def _bottleneck(prefix: Sequence[int], *, num_stages: int, may: Allowed) -> int | None:
    """best[i]: least bottleneck of layers i.. over the stages looked at so far; None where impossible."""
    layers = len(prefix) - 1
    best: list[int | None] = [None] * layers + [0]
    for stage in reversed(range(num_stages)):
        ahead = num_stages - 1 - stage
        now: list[int | None] = [None] * (layers + 1)
        for first in range(stage, layers - ahead):
            found: int | None = None
            for end in range(first + 1, layers - ahead + 1):
                weight = prefix[end] - prefix[first]
                if (found is not None and weight >= found) or not may(stage, first, end):
                    break
                rest = best[end]
                if rest is not None and (found is None or max(weight, rest) < found):
                    found = max(weight, rest)
            now[first] = found
        best = now
    return best[0]


def _most_even(prefix: Sequence[int], *, num_stages: int, bottleneck: int, may: Allowed) -> tuple[int, ...]:
    """best[i]: (sum of squared weights, of squared lengths) of layers i.. with every run within the bottleneck."""
    layers = len(prefix) - 1
    best: list[tuple[int, int] | None] = [None] * layers + [(0, 0)]
    choices: list[list[int]] = []
    for stage in reversed(range(num_stages)):
        ahead = num_stages - 1 - stage
        now: list[tuple[int, int] | None] = [None] * (layers + 1)
        choice = [0] * (layers + 1)
        for first in range(stage, layers - ahead):
            for end in range(first + 1, layers - ahead + 1):
                weight = prefix[end] - prefix[first]
                if weight > bottleneck or not may(stage, first, end):
                    break
                rest = best[end]
                if rest is None:
                    continue
                known = now[first]
                candidate = (rest[0] + weight * weight, rest[1] + (end - first) ** 2)
                if known is None or candidate <= known:
                    now[first], choice[first] = candidate, end
        best = now
        choices.append(choice)
    counts, first = [], 0
    for choice in reversed(choices):
        counts.append(choice[first] - first)
        first = choice[first]
    return tuple(counts)
