"""Other ways to cut layers into stages, written from their descriptions, to be held against the exact cut.

Each takes the weights of the layers and the number of stages and returns layers per stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from fullbore.partition.equal import equal

Rule = Callable[[Sequence[int], int], tuple[int, ...]]


def sums(weights: Sequence[int], counts: Sequence[int]) -> list[int]:
    prefix = (0, *accumulate(weights))
    return [prefix[end] - prefix[first] for first, end in pairwise((0, *accumulate(counts)))]


def equal_counts(weights: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Layers are counted, not weighed: what most trainers do."""
    return equal(len(weights), num_stages=num_stages)


def greedy_thresholds(weights: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """A layer goes to the stage in whose even share of the whole its end falls; stages may stay empty."""
    whole, counts, reached = sum(weights), [0] * num_stages, 0
    for weight in weights:
        reached += weight
        counts[min(num_stages - 1, -(-reached * num_stages // whole) - 1)] += 1
    return tuple(counts)


def least_gap(weights: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Stage by stage, the cut of every prefix with the least distance between its heaviest and its lightest stage.

    The distance of a whole is not made of the best distances of its parts, so this is no exact method.
    """
    prefix = (0, *accumulate(weights))
    layers = len(weights)
    best: list[tuple[int, int, tuple[int, ...]] | None] = [None] + [
        (prefix[end], prefix[end], (end,)) for end in range(1, layers + 1)
    ]
    for stage in range(1, num_stages):
        now: list[tuple[int, int, tuple[int, ...]] | None] = [None] * (layers + 1)
        for end in range(stage + 1, layers + 1):
            for first in range(stage, end):
                before = best[first]
                if before is None:
                    continue
                weight = prefix[end] - prefix[first]
                most, least = max(before[0], weight), min(before[1], weight)
                known = now[end]
                if known is None or most - least < known[0] - known[1]:
                    now[end] = (most, least, (*before[2], end - first))
        best = now
    found = best[layers]
    assert found is not None
    return found[2]


def block_partition(weights: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Imre Barany and Victor S. Grinberg, Block partitions of sequences: layers move along, one at a time, from the
    heaviest to the lightest stage until the two differ by no more than the heaviest layer."""
    counts, heaviest_layer = list(equal(len(weights), num_stages=num_stages)), max(weights)
    seen = set()
    while tuple(counts) not in seen:
        seen.add(tuple(counts))
        held = sums(weights, counts)
        heavy, light = held.index(max(held)), held.index(min(held))
        if held[heavy] - held[light] <= heaviest_layer or counts[heavy] == 1:
            break
        counts[heavy] -= 1
        counts[light] += 1
    return tuple(counts)
