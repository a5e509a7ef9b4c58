from __future__ import annotations

from fractions import Fraction

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.registry import REGISTRY, get
from fullbore.simulate.memory import peak_shares


def test_the_registered_names() -> None:
    known = {"gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs", "1f1b-v"}
    known |= {"zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min"}
    assert known | {"dualpipe-v", "dualpipe", "chimera", "hanayo", "seq-1f1b"} <= REGISTRY.keys()
    assert all(get(name) is entry and entry.name == name for name, entry in REGISTRY.items())


def test_a_schedule_carries_the_name_it_is_registered_under() -> None:
    assert [entry.build(2, num_microbatches=4).name for entry in REGISTRY.values()] == list(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_entry_tells_what_it_is(name: str) -> None:
    entry = get(name)
    assert "arXiv" in entry.paper
    assert entry.summary
    assert "\n" not in entry.summary
    assert entry.constraints
    kinds = {action.kind.value for order in entry.build(4, num_microbatches=8).orders for action in order}
    assert kinds - {"B"} == ({"F", "I", "W"} if entry.splits_backward else {"F"})
    assert "B" in kinds or entry.splits_backward


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(
        ScheduleError, match=rf"no schedule '1f1bb'; did you mean '1f1b'\? known: {', '.join(REGISTRY)}"
    ):
        get("1f1bb")


def test_a_name_like_none_gets_the_list() -> None:
    with pytest.raises(ScheduleError, match=f"no schedule 'xyz'; known: {', '.join(REGISTRY)}"):
        get("xyz")


DRAWN_ONLY = {"hanayo", "seq-1f1b"}


def test_who_is_made_for_costs_and_who_cannot_run() -> None:
    assert {name for name, entry in REGISTRY.items() if entry.cost_driven} == {"zb-1p", "zb-2p", "zb-v"}
    assert {name for name, entry in REGISTRY.items() if not entry.runnable} == DRAWN_ONLY


@pytest.mark.parametrize("name", REGISTRY)
def test_the_placement_is_known_before_the_schedule(name: str) -> None:
    entry = get(name)
    sizes = entry.sizes(4, num_microbatches=8)
    schedule = entry.make(sizes)
    assert entry.place(sizes) == schedule.placement
    assert schedule.num_stages == sizes.num_stages
    assert schedule.num_slices == sizes.num_slices


def test_costs_are_for_all_stages_and_caps_for_all_ranks() -> None:
    placement = Placement.linear(4)
    with pytest.raises(ScheduleError, match=r"zb-v has 8 stages and needs one cost for each \(given 4\)"):
        get("zb-v").build(4, num_microbatches=8, costs=ScheduleCosts.of(placement))
    with pytest.raises(ScheduleError, match=r"one number a rank, 4 of them \(given 1\)"):
        ScheduleCosts.of(placement, memory_cap=[Fraction(3)])
    with pytest.raises(ScheduleError, match=r"from 0 to 1 \(given 1.5\)"):
        ScheduleCosts.of(placement, input_backward_frees=Fraction(3, 2))
    with pytest.raises(ScheduleError, match=r"above 0 shares \(given 0\)"):
        ScheduleCosts.of(placement, memory_cap=Fraction(0))
    tight = ScheduleCosts.of(placement, memory_cap=Fraction(1, 2))
    with pytest.raises(ScheduleError, match=r"zb-1p needs room for .* \(memory_cap=0.5 shares\); give at least 1"):
        get("zb-1p").build(4, num_microbatches=8, costs=tight)


@pytest.mark.parametrize(
    "caps", [(Fraction(3, 2), Fraction(3, 2)), (Fraction(3), Fraction(1)), (Fraction(1), Fraction(3))]
)
def test_zb_v_keeps_to_caps_under_which_its_rounds_come_to_a_dead_end(caps: tuple[Fraction, Fraction]) -> None:
    """The published rounds start one forward too many there."""
    costs = ScheduleCosts.of(get("zb-v").place(get("zb-v").sizes(2, num_microbatches=2)), memory_cap=caps)
    kept = peak_shares(get("zb-v").build(2, num_microbatches=2, costs=costs))
    assert all(share <= cap for share, cap in zip(kept, caps, strict=True))


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "message"),
    [
        ("zb-h1", 4, 3, r"at least num_ranks \(num_microbatches=3, num_ranks=4\); use 4"),
        ("zb-h2", 4, 6, r"at least 2 num_ranks - 1 \(num_microbatches=6, num_ranks=4\); use 7"),
        ("dualpipe-v", 4, 7, r"at least 2 num_ranks \(num_microbatches=7, num_ranks=4\); use 8"),
        ("dualpipe", 3, 8, r"an even number of ranks \(num_ranks=3\); use 2 or 4"),
        ("dualpipe", 4, 9, r"an even num_microbatches of at least 2 num_ranks \(.*=9, num_ranks=4\); use 10"),
        ("dualpipe", 4, 6, r"an even num_microbatches of at least 2 num_ranks \(.*=6, num_ranks=4\); use 8"),
        ("chimera", 5, 8, r"an even number of ranks \(num_ranks=5\); use 4 or 6"),
        ("chimera", 4, 7, r"an even number of microbatches, as many down as up \(num_microbatches=7\); use 6 or 8"),
    ],
)
def test_sizes_that_do_not_exist_are_refused_with_the_nearest(
    name: str, ranks: int, microbatches: int, message: str
) -> None:
    with pytest.raises(ScheduleError, match=f"^{name} needs .*{message}$"):
        get(name).build(ranks, num_microbatches=microbatches)


def test_waves_decide_the_stages_of_a_rank() -> None:
    hanayo = get("hanayo")
    assert hanayo.build(2, num_microbatches=4, options={"waves": 3}).placement == Placement.snake(2, num_chunks=6)
    assert hanayo.build(2, num_microbatches=4, num_chunks=4, options={"waves": 2}).num_stages == 8
    with pytest.raises(ScheduleError, match=r"hanayo has 4 stages per rank \(num_chunks=2\); use 4"):
        hanayo.build(2, num_microbatches=4, num_chunks=2, options={"waves": 2})


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(0, 4), (-1, 4), (4, 0), (True, 4)])
def test_sizes_below_one_are_refused(name: str, num_ranks: int, num_microbatches: int) -> None:
    given = rf"num_ranks={num_ranks}, num_microbatches={num_microbatches}"
    with pytest.raises(ScheduleError, match=rf"{name} needs num_\w+ of at least 1 \({given}\)"):
        get(name).build(num_ranks, num_microbatches=num_microbatches)
