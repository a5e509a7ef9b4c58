from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fullbore.errors import CostsError, ScheduleError
from fullbore.ir.placement import Placement
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.registry import get
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.compiled import compile_schedule
from fullbore.synthesis import catalogue
from fullbore.synthesis.auto import ENTRY, variants
from fullbore.synthesis.bounds import bound_of
from fullbore.synthesis.instance import Instance
from fullbore.synthesis.replays import Replays, exact_makespan
from fullbore.synthesis.search import Found, choose, published_for, search
from tests.support.instances import costs_for

LINEAR = Placement.linear(4)
SIZES = Sizes(num_ranks=4, num_microbatches=8)


def test_at_the_memory_of_1f1b_it_is_as_fast_as_zero_bubble_h1() -> None:
    found = search(SIZES, LINEAR, costs=costs_for(LINEAR, [(1, 1, 1)], cap=4), name="auto")
    assert (found.makespan, found.limit, found.schedule.name) == (27, 27, "auto")


@pytest.mark.parametrize(("ranks", "microbatches", "optimum"), [(4, 16, 4930), (8, 16, 5530), (8, 32, 10010)])
def test_under_a_tight_cap_it_is_proven_the_best(ranks: int, microbatches: int, optimum: int) -> None:
    """Forward 115, backwards 100 and 65, room for p microbatches: the one-device bound is met."""
    placement = Placement.linear(ranks)
    sizes = Sizes(num_ranks=ranks, num_microbatches=microbatches)
    costs = costs_for(placement, [(115, 100, 65)], cap=ranks)
    found = search(sizes, placement, costs=costs, name="auto")
    assert found.makespan == optimum
    assert bound_of(found.schedule, costs=costs, makespan=found.makespan, states=20_000).makespan == optimum


def test_a_last_stage_that_is_twice_as_slow_decides_everything() -> None:
    stages = [(1, 1, 1)] * 3 + [(2, 2, 2)]
    found = search(SIZES, LINEAR, costs=costs_for(LINEAR, stages, cap=8), name="auto")
    assert found.makespan == 3 + 8 * 6


def test_without_costs_it_is_made_for_equal_stages() -> None:
    schedule = ENTRY.build(4, num_microbatches=8)
    assert exact_makespan(compile_schedule(schedule), costs=costs_for(LINEAR, [(1, 1, 1)])) == 27


@pytest.mark.parametrize(("stages", "delay"), [([(10**30, 1, 10**15)], 0), ([(1, 1, 1)], 10**30), ([(1, 1, 1)], 2**45)])
def test_times_beyond_64_bits_are_refused(stages: list[tuple[int, int, int]], delay: int) -> None:
    """They came to an assertion of the list, which took 2^62 for never, or to an overflow in an array."""
    with pytest.raises(CostsError, match=r"ends before 2\^62 time units .* or with fewer decimals"):
        search(SIZES, LINEAR, costs=costs_for(LINEAR, stages, delay=delay), name="auto")
    assert (
        search(SIZES, LINEAR, costs=costs_for(LINEAR, [(2**41, 1, 1)], delay=2**41), name="auto").makespan > 8 * 2**41
    )


def test_the_same_input_gives_the_same_order() -> None:
    costs = costs_for(LINEAR, [(10, 11, 8), (9, 12, 7), (12, 10, 9), (13, 14, 8)], delay=1, cap=4)
    assert search(SIZES, LINEAR, costs=costs, name="auto") == search(SIZES, LINEAR, costs=costs, name="auto")


def test_published_schedules_are_those_on_the_same_ranks_that_run() -> None:
    def names(placement: Placement, chunks: int) -> set[str]:
        sizes = Sizes(num_ranks=4, num_microbatches=8, num_chunks=chunks)
        return {one.name for one in published_for(sizes, placement, costs=ScheduleCosts.of(placement))}

    assert {"gpipe", "1f1b", "zb-h1", "zb-1p"} <= names(LINEAR, 1)
    assert names(Placement.loop(4, num_chunks=2), 2) >= {"interleaved-1f1b", "looped-bfs"}
    assert names(Placement.snake(4, num_chunks=2), 2) >= {"zb-v", "v-half", "dualpipe-v"}
    assert not {"seq-1f1b", "chimera", "hanayo", "dualpipe"} & names(LINEAR, 1)


def test_it_is_not_slower_than_a_published_one_even_where_a_slower_one_bears_jitter_better() -> None:
    """Without this rule the more robust order, 0.1 % to 0.2 % slower than a published one, would be taken."""
    for stages, sizes, delay, cap in (
        ([(111, 81, 95), (116, 95, 97), (91, 106, 84)], (3, 8), 20, 4),
        ([(83, 90, 96), (98, 114, 98), (107, 117, 80)], (3, 10), 13, 4),
        ([(84, 115, 119), (105, 99, 116)], (2, 8), 15, 2),
    ):
        placement = Placement.linear(sizes[0])
        costs = costs_for(placement, stages, delay=delay, cap=cap)
        found = search(Sizes(num_ranks=sizes[0], num_microbatches=sizes[1]), placement, costs=costs, name="auto")
        assert found.limit is not None
        assert found.makespan <= found.limit


def test_of_placements_the_fastest_within_reach_of_the_published_limit_is_chosen() -> None:
    schedule = get("gpipe").build(1, num_microbatches=1)

    def found(makespan: int, jittered: float, limit: int | None) -> Found:
        return Found(schedule, makespan, jittered, limit)

    assert choose([found(1000, 1100.0, None), found(1004, 1050.0, None)], per_unit=[1, 1]) == 1
    assert choose([found(1000, 1100.0, 1002), found(1004, 1050.0, None)], per_unit=[1, 1]) == 0
    assert choose([found(1000, 1100.0, None), found(2001, 2150.0, None)], per_unit=[1, 2]) == 1


def test_auto_tries_one_stage_a_rank_and_two_unless_told_otherwise() -> None:
    def tried(**given: object) -> list[tuple[int, int]]:
        sizes = variants(ENTRY, 4, num_microbatches=8, **given)  # type: ignore[arg-type]
        return [(one.num_chunks, one.options["snake"]) for one in sizes]

    assert tried() == [(1, 0), (2, 1), (2, 0)]
    assert tried(num_chunks=1) == [(1, 0)]
    assert tried(num_chunks=3) == [(3, 1), (3, 0)]
    assert tried(num_chunks=2, options={"snake": 1}) == [(2, 1)]
    assert [one.num_chunks for one in variants(get("1f1b"), 4, num_microbatches=8)] == [1]


def test_too_much_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"up to 150,000 forwards \(these sizes have 160,000\)"):
        ENTRY.build(16, num_microbatches=10_000)


def test_the_catalogue_is_the_registry_and_auto() -> None:
    assert catalogue.get("auto") is ENTRY
    assert catalogue.get("1f1b") is get("1f1b")
    with pytest.raises(ScheduleError, match="did you mean 'auto'"):
        catalogue.get("auot")


def test_draws_belong_to_actions_and_not_to_places() -> None:
    """Two orders of one rank take the same time in every replay, though they run in another sequence."""
    alone = Placement.linear(1)
    costs = costs_for(alone, [(1000, 1000, 1000)])
    instance = Instance.of(alone, num_microbatches=3, costs=costs)
    replays = Replays(num_stages=1, num_microbatches=3, count=5, seed=1)
    orders = [(0, 1, 2, 0, 1, 2, 0, 1, 2), (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    first, second = (
        replays.makespans(compile_schedule(instance.schedule((order,), name="x")), costs=costs) for order in orders
    )
    assert np.array_equal(first, second)
    assert len(set(first)) == 5
    assert abs(first.mean() / 9000 - 1) < 0.05


def test_input_backward_that_frees_early_is_kept_to() -> None:
    costs = costs_for(LINEAR, [(1, 1, 1)], cap=3, frees=Fraction(1, 2))
    found = search(SIZES, LINEAR, costs=costs, name="auto")
    assert Instance.of(LINEAR, num_microbatches=8, costs=costs).fits(found.schedule)
