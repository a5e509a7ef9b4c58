"""The search against every cut there is, and its parts against their definitions."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.partition.best import best_partition
from fullbore.partition.in_flight import in_flight
from fullbore.partition.judge import Judge
from fullbore.partition.least_memory import least_memory
from fullbore.partition.min_max import min_max
from fullbore.partition.near_cuts import near_cuts
from fullbore.partition.partition import NothingFits
from fullbore.partition.search import evened
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_bytes
from fullbore.timeline.bubble import bubble_of
from tests.support.two_ways import shuffled_streams

small = st.integers(0, 20)
layer = st.builds(
    LayerCost,
    st.just("layer"),
    *(small, small, small),
    parameter_bytes=small,
    optimizer_bytes=small,
    activation_bytes=small,
    output_bytes=small,
)
layers_of = st.lists(layer, min_size=3, max_size=9)


def every_cut(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    return [
        tuple(end - first for first, end in pairwise((0, *cuts, num_layers)))
        for cuts in combinations(range(1, num_layers), num_stages - 1)
    ]


def exactly(layers: list[LayerCost], counts: tuple[int, ...], schedule: Schedule, links: list[Link]) -> tuple[int, int]:
    """(makespan, largest peak of a rank) by the exact simulation."""
    edges = (0, *np.cumsum(counts).tolist())
    held = [layers[first:end] for first, end in pairwise(edges)]
    sizes = [layers[end - 1].output_bytes for end in edges[1:-1]]
    if schedule.placement.num_streams == 2:  # rank r holds the runs r and p - 1 - r, and link r joins ranks r and r + 1
        held, sizes = [*held, *reversed(held)], [*sizes, 0, *reversed(sizes)]
        links = [*links, Link(), *links] if links else []
    costs = [StageCost.of_layers(stage) for stage in held]
    timeline = simulate(schedule, costs=costs, links=links, message_bytes=sizes)
    return bubble_of(timeline).makespan_ns, max(peak_bytes(schedule, stages=[StageMemory.of_layers(s) for s in held]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[LayerCost], Schedule, list[Link]]:
    layers = draw(layers_of)
    ranks = draw(st.integers(1, min(4, len(layers))))
    names = ["1f1b", "gpipe"] + (["interleaved-1f1b"] if ranks == 2 and len(layers) >= 4 else [])
    names += ["chimera"] if ranks % 2 == 0 else []
    schedule = get(draw(st.sampled_from(names))).build(ranks, num_microbatches=2 * draw(st.integers(1, 3)))
    boundaries = schedule.placement.stages_per_stream - 1
    link = st.builds(Link, small, st.none() | st.integers(10**8, 10**10))
    return layers, schedule, draw(st.just([]) | st.lists(link, min_size=boundaries, max_size=boundaries))


@settings(max_examples=100)
@given(cases(), st.none() | st.integers(0, 400))
def test_no_cut_that_fits_is_faster(case: tuple[list[LayerCost], Schedule, list[Link]], limit: int | None) -> None:
    layers, schedule, links = case
    found = {
        cut: exactly(layers, cut, schedule, links)
        for cut in every_cut(len(layers), schedule.placement.stages_per_stream)
    }
    fitting = [makespan for makespan, peak in found.values() if limit is None or peak <= limit]
    try:
        best = best_partition(layers, schedule=schedule, links=links, memory_bytes=limit)
    except NothingFits as no:
        nearest = no.nearest_bytes
        assert not fitting
        assert nearest == min(peak for _, peak in found.values())
    else:
        assert found[best.layers_per_stage][0] == min(fitting)


there_and_back = st.builds(
    shuffled_streams,
    st.just(Placement.snake(2, num_chunks=2)),
    num_microbatches=st.integers(1, 3),
    split=st.booleans(),
    seed=st.integers(0, 10**6),
)


@given(
    st.lists(layer, min_size=4, max_size=6), there_and_back, st.lists(st.builds(Link, small), min_size=3, max_size=3)
)
def test_a_boundary_within_a_rank_is_free(layers: list[LayerCost], schedule: Schedule, links: list[Link]) -> None:
    cuts = every_cut(len(layers), 4)
    scores = Judge(layers, schedule=schedule, links=links).scores(np.array(cuts))
    assert [score.makespan for score in scores] == [exactly(layers, cut, schedule, links)[0] for cut in cuts]


both_ways = st.builds(
    shuffled_streams,
    st.just(Placement.bidirectional(4)),
    num_microbatches=st.integers(2, 4),
    split=st.booleans(),
    seed=st.integers(0, 10**6),
)
three_links = st.lists(st.builds(Link, small, st.none() | st.integers(10**8, 10**10)), min_size=3, max_size=3)


@given(st.lists(layer, min_size=4, max_size=6), both_ways, three_links)
def test_a_cut_is_scored_over_both_streams(layers: list[LayerCost], schedule: Schedule, links: list[Link]) -> None:
    cuts = every_cut(len(layers), 4)
    scores = Judge(layers, schedule=schedule, links=links, memory_bytes=50).scores(np.array(cuts))
    expected = [exactly(layers, cut, schedule, links) for cut in cuts]
    assert [(score.makespan, score.excess_bytes) for score in scores] == [
        (m, max(peak - 50, 0)) for m, peak in expected
    ]


@given(cases())
def test_many_cuts_are_scored_as_each_alone(case: tuple[list[LayerCost], Schedule, list[Link]]) -> None:
    layers, schedule, links = case
    cuts = every_cut(len(layers), schedule.placement.stages_per_stream)
    judge = Judge(layers, schedule=schedule, links=links, memory_bytes=50)
    for cut, score in zip(cuts, judge.scores(np.array(cuts)), strict=True):
        makespan, peak = exactly(layers, cut, schedule, links)
        assert (score.makespan, score.excess_bytes) == (makespan, max(peak - 50, 0))


@given(st.lists(small, min_size=1, max_size=9), st.data())
def test_the_shortlist_is_every_cut_within_the_bound(weights: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(weights)))
    bound = data.draw(st.integers(0, sum(weights)))
    expected = [
        cut
        for cut in every_cut(len(weights), stages)
        if max(sum(weights[first:end]) for first, end in pairwise((0, *np.cumsum(cut).tolist()))) <= bound
    ]
    found = near_cuts(weights, num_stages=stages, bound=bound, limit=10**6)
    assert found is not None
    assert sorted(found) == sorted(expected)
    if expected:
        assert near_cuts(weights, num_stages=stages, bound=bound, limit=len(expected) - 1) is None


@given(layers_of, st.data())
def test_the_least_memory_is_that_of_the_best_cut(layers: list[LayerCost], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(layers)))
    kept = data.draw(st.lists(st.integers(1, 8), min_size=stages, max_size=stages))
    expected = min(
        max(
            StageMemory.of_layers(layers[first:end]).with_in_flight(count)
            for (first, end), count in zip(pairwise((0, *np.cumsum(cut).tolist())), kept, strict=True)
        )
        for cut in every_cut(len(layers), stages)
    )
    assert least_memory(layers, in_flight=kept) == expected


@given(layers_of, st.data())
def test_an_evened_cut_is_a_cut_with_a_lighter_busiest_rank(layers: list[LayerCost], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, len(layers) // 2))
    schedule = get("looped-bfs").build(ranks, num_microbatches=2, num_chunks=2)
    start = min_max([layer.time_ns for layer in layers], num_stages=schedule.num_stages)
    judge = Judge(layers, schedule=schedule)
    for cut in (start, evened(judge, start)):
        assert len(cut) == schedule.num_stages
        assert min(cut) >= 1
        assert sum(cut) == len(layers)
    assert judge.rank_times(np.array([evened(judge, start)])).max() <= judge.rank_times(np.array([start])).max()


def test_in_flight_is_what_memory_is_held_against() -> None:
    schedule = get("1f1b").build(3, num_microbatches=9)
    layers = [LayerCost("layer", 1, 1, 1, activation_bytes=1)] * 3
    assert peak_bytes(schedule, stages=[StageMemory.of_layers([one]) for one in layers]) == in_flight(schedule)
