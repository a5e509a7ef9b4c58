"""Every cut whose slowest stage is nearly as fast as it can be: the shortlist that a simulation then ranks.

The least bottleneck is not always the least makespan: with few microbatches it also matters *where* the slow stage is
and how its time divides into forward and backward. `near_cuts` lists the cuts worth a look, or says that they are too
many to list. The number is worked out first, by dynamic programming, so that nothing is listed in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from fullbore.partition.min_max import Allowed

__all__ = ["near_cuts"]


def near_cuts(
    weights: Sequence[int], *, num_stages: int, bound: int, allowed: Allowed | None = None, limit: int
) -> list[tuple[int, ...]] | None:
    """Layers per stage of every cut without a run above ``bound``; None where there are more than ``limit``.

    O(p L w) for the count, w layers fitting into one stage; then linear in what is listed.
    """
    prefix = (0, *accumulate(weights))
    ends = [
        [_ends(prefix, stage, first, num_stages, bound, allowed) for first in range(len(weights))]
        for stage in range(num_stages)
    ]
    ways = [[0] * len(weights) + [1]]
    for stage in reversed(range(num_stages)):
        rest = ways[-1]
        ways.append([sum(rest[end] for end in ends[stage][first]) for first in range(len(weights))] + [0])
    if ways[-1][0] > limit:
        return None
    return list(_listed(ends, ways[::-1], stage=0, first=0))


def _ends(
    prefix: Sequence[int], stage: int, first: int, num_stages: int, bound: int, allowed: Allowed | None
) -> list[int]:
    """Where a run of this stage that begins here may end."""
    found = []
    for end in range(first + 1, len(prefix) - (num_stages - 1 - stage)):
        if prefix[end] - prefix[first] > bound or (allowed is not None and not allowed(stage, first, end)):
            break
        found.append(end)
    return found


def _listed(
    ends: Sequence[Sequence[list[int]]], ways: Sequence[Sequence[int]], *, stage: int, first: int
) -> Iterator[tuple[int, ...]]:
    """Only ways that lead to a whole cut are gone."""
    if stage == len(ends):
        yield ()
        return
    for end in ends[stage][first]:
        if ways[stage + 1][end]:
            for rest in _listed(ends, ways, stage=stage + 1, first=end):
                yield (end - first, *rest)
