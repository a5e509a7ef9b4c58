"""The best cut for ranks of unequal speed against every cut there is."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.schedule import Schedule
from fullbore.partition.recut import recut
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from tests.property.test_best_cuts import every_cut, layers_of, small

factors = st.sampled_from([1.0, 1.0, 1.3, 2.0, 3.7])


def exactly(
    layers: list[LayerCost], counts: tuple[int, ...], schedule: Schedule, slowness: list[float], links: list[Link]
) -> int:
    """What the pass takes by the exact simulation."""
    held = [layers[first:end] for first, end in pairwise((0, *accumulate(counts)))]
    ranks = schedule.placement.ranks
    costs = [StageCost.of_layers(stage).slowed(slowness[ranks[index]]) for index, stage in enumerate(held)]
    sizes = [stage[-1].output_bytes for stage in held[:-1]]
    return bubble_of(simulate(schedule, costs=costs, links=links, message_bytes=sizes)).makespan_ns


@given(layers=layers_of, ranks=st.integers(2, 3), microbatches=st.integers(1, 4), data=st.data())
def test_no_cut_is_faster(layers: list[LayerCost], ranks: int, microbatches: int, data: st.DataObject) -> None:
    schedule = get("1f1b").build(ranks, num_microbatches=microbatches)
    slowness = data.draw(st.lists(factors, min_size=ranks, max_size=ranks))
    links = [Link(data.draw(small)) for _ in range(ranks - 1)]
    cuts = every_cut(len(layers), ranks)
    present = data.draw(st.sampled_from(cuts))
    found = recut(layers, schedule=schedule, present=present, slowness=slowness, links=links)
    taken = {cut: exactly(layers, cut, schedule, slowness, links) for cut in cuts}
    # compute starts at the first action, so a simulation's span is its end
    assert found.present_ns == taken[present]
    assert found.best_ns == taken[found.layers_per_stage] == min(taken.values())
    assert found.gain == (1 - found.best_ns / found.present_ns if found.present_ns else 0)


@given(layers=st.lists(st.integers(1, 20), min_size=5, max_size=8), data=st.data())
def test_with_several_stages_a_rank_the_cut_is_never_slower_than_the_present_one(
    layers: list[int], data: st.DataObject
) -> None:
    schedule = get("interleaved-1f1b").build(2, num_microbatches=2)
    costs = [LayerCost(f"layers.{index}", time, time, time) for index, time in enumerate(layers)]
    slowness = data.draw(st.lists(factors, min_size=2, max_size=2))
    present = data.draw(st.sampled_from(every_cut(len(costs), 4)))
    found = recut(costs, schedule=schedule, present=present, slowness=slowness)
    taken = {cut: exactly(costs, cut, schedule, slowness, []) for cut in every_cut(len(costs), 4)}
    assert found.present_ns == taken[present]
    assert found.best_ns == taken[found.layers_per_stage] == min(taken.values()), "so few cuts are all tried"
