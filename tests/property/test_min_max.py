"""The exact partition against every cut there is."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from fullbore.partition.min_max import min_max


def best_by_brute_force(weights: list[int], num_stages: int) -> tuple[int, int]:
    """(bottleneck, sum of squares) of the best cut."""
    found = []
    for cuts in combinations(range(1, len(weights)), num_stages - 1):
        edges = (0, *cuts, len(weights))
        sums = [sum(weights[a:b]) for a, b in pairwise(edges)]
        found.append((max(sums), sum(s * s for s in sums)))
    return min(found)


@given(st.data(), st.lists(st.integers(0, 6) | st.integers(0, 30), min_size=1, max_size=11))
def test_it_equals_brute_force(data: st.DataObject, weights: list[int]) -> None:
    num_stages = data.draw(st.integers(1, len(weights)))
    counts = min_max(weights, num_stages=num_stages)
    assert len(counts) == num_stages
    assert min(counts) >= 1
    assert sum(counts) == len(weights)
    edges = [sum(counts[:stage]) for stage in range(num_stages + 1)]
    sums = [sum(weights[a:b]) for a, b in pairwise(edges)]
    assert (max(sums), sum(s * s for s in sums)) == best_by_brute_force(weights, num_stages)
