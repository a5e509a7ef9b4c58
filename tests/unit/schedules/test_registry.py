from __future__ import annotations

import pytest

from fullbore.errors import ScheduleError
from fullbore.schedules.registry import NOT_BUILT_YET, REGISTRY, get


def test_the_registered_names() -> None:
    assert {"gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs"} <= REGISTRY.keys()
    assert all(get(name) is entry and entry.name == name for name, entry in REGISTRY.items())


def test_a_schedule_carries_the_name_it_is_registered_under() -> None:
    assert [entry.build(2, num_microbatches=2).name for entry in REGISTRY.values()] == list(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_entry_tells_what_it_is(name: str) -> None:
    entry = get(name)
    assert "arXiv" in entry.paper
    assert entry.summary
    assert "\n" not in entry.summary
    assert entry.constraints
    kinds = {action.kind.value for order in entry.build(3, num_microbatches=6).orders for action in order}
    assert kinds == ({"F", "I", "W"} if entry.splits_backward else {"F", "B"})


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(
        ScheduleError, match=rf"no schedule '1f1bb'; did you mean '1f1b'\? known: {', '.join(REGISTRY)}"
    ):
        get("1f1bb")


def test_a_name_like_none_gets_the_list() -> None:
    with pytest.raises(ScheduleError, match=f"no schedule 'xyz'; known: {', '.join(REGISTRY)}"):
        get("xyz")


def test_reserved_names_are_not_built_yet() -> None:
    assert "zb-h1" in NOT_BUILT_YET
    assert not set(NOT_BUILT_YET) & set(REGISTRY)
    with pytest.raises(ScheduleError, match="schedule 'zb-h1' is not built yet; use one of: gpipe"):
        get("zb-h1")


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(0, 4), (-1, 4), (4, 0), (True, 4)])
def test_sizes_below_one_are_refused(name: str, num_ranks: int, num_microbatches: int) -> None:
    given = rf"num_ranks={num_ranks}, num_microbatches={num_microbatches}"
    with pytest.raises(ScheduleError, match=rf"{name} needs num_\w+ of at least 1 \({given}\)"):
        get(name).build(num_ranks, num_microbatches=num_microbatches)
