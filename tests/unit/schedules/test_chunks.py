"""Schedules with several stages a rank: timetables by hand, which sizes exist, and what is refused with which advice.

A forward and a backward of one stage take one tick each. Microbatches 0 1 2 of chunk 0 are a b c of chunk 1, A B C of
chunk 2; a prime marks a backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from tests.timetable import equal_costs, rows, timetable_of_chunks


@dataclass(frozen=True)
class Drawn:
    name: str
    ranks: int
    microbatches: int
    expected: str
    chunks: int = 2
    options: dict[str, int] = field(default_factory=dict)


DRAWN = [
    Drawn(
        "interleaved-1f1b",
        2,
        4,
        """
    0  1  a  b  2  a' 3  b' c  0' d  1' .  c' .  d' 2' 3'
    .  0  1  a  a' b  b' 2  0' 3  1' c  c' d  d' 2' 3' .
        """,
    ),
    Drawn(
        "interleaved-1f1b",
        4,
        8,
        """
    0  1  2  3  a  b  c  d  4  5  6  a' 7  b' .  .  e  c' f  d' g  0' h  1' 2' 3' .  e' .  f' .  g' .  h' 4' 5' 6' 7'
    .  0  1  2  3  a  b  c  d  4  a' 5  b' 6  c' 7  d' e  0' f  1' g  2' h  3' .  e' .  f' .  g' .  h' 4' 5' 6' 7' .
    .  .  0  1  2  3  a  b  c  a' d  b' 4  c' 5  d' 6  0' 7  1' e  2' f  3' g  e' h  f' .  g' .  h' 4' 5' 6' 7' .  .
    .  .  .  0  1  2  3  a  a' b  b' c  c' d  d' 4  0' 5  1' 6  2' 7  3' e  e' f  f' g  g' h  h' 4' 5' 6' 7' .  .  .
        """,
    ),
    Drawn(
        "interleaved-1f1b",
        2,
        2,
        """
    0  1  a  b  A  B  .  A' .  B' a' b' 0' 1'
    .  0  1  a  b  A  A' B  B' a' b' 0' 1' .
        """,
        chunks=3,
    ),
    Drawn(
        "interleaved-1f1b",
        2,
        5,
        """
    0  1  2  a  b  c  a' 3  b' 4  c' d  0' e  1' .  2' .  d' e' 3' 4'
    .  0  1  2  a  a' b  b' c  c' 3  0' 4  1' d  2' e  d' e' 3' 4' .
        """,
        options={"group_size": 3},
    ),
    Drawn(
        "interleaved-1f1b",
        2,
        4,
        """
    0  1  a  b  2  3  a' c  b' d  0' .  1' .  c' d' 2' 3'
    .  0  1  a  b  a' 2  b' 3  0' c  1' d  c' d' 2' 3' .
        """,
        options={"extra_warmup": 1},
    ),
    Drawn("interleaved-1f1b", 1, 2, "0 a a' 1 0' b b' 1'"),
    Drawn(
        "looped-bfs",
        2,
        3,
        """
    0  1  2  a  b  c  .  .  a' b' c' 0' 1' 2'
    .  0  1  2  a  b  c  a' b' c' 0' 1' 2' .
        """,
    ),
    Drawn(
        "looped-bfs",
        4,
        2,
        """
    0  1  .  .  a  b  .  .  .  .  .  .  a' b' .  .  0' 1'
    .  0  1  .  .  a  b  .  .  .  .  a' b' .  .  0' 1' .
    .  .  0  1  .  .  a  b  .  .  a' b' .  .  0' 1' .  .
    .  .  .  0  1  .  .  a  b  a' b' .  .  0' 1' .  .  .
        """,
    ),
    Drawn(
        "looped-bfs",
        2,
        2,
        """
    0  1  a  b  A  B  .  .  A' B' a' b' 0' 1'
    .  0  1  a  b  A  B  A' B' a' b' 0' 1' .
        """,
        chunks=3,
    ),
]


@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: f"{drawn.name}-{drawn.ranks}-{drawn.microbatches}")
def test_timetable(drawn: Drawn) -> None:
    schedule = get(drawn.name).build(
        drawn.ranks, num_microbatches=drawn.microbatches, num_chunks=drawn.chunks, options=drawn.options
    )
    assert schedule.placement == Placement.loop(drawn.ranks, num_chunks=drawn.chunks)
    timeline = simulate(schedule, costs=equal_costs(schedule.num_stages))
    assert timetable_of_chunks(timeline) == rows(drawn.expected)


@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs"])
def test_two_chunks_unless_asked_otherwise(name: str) -> None:
    assert get(name).build(2, num_microbatches=4).num_stages == 4
    assert get(name).build(2, num_microbatches=4, num_chunks=5).num_stages == 10


@pytest.mark.parametrize(("name", "same"), [("interleaved-1f1b", "eager-1f1b"), ("looped-bfs", "gpipe")])
def test_with_one_chunk_they_are_schedules_known_before(name: str, same: str) -> None:
    one = get(name).build(4, num_microbatches=8, num_chunks=1)
    other = get(same).build(4, num_microbatches=8)
    assert (one.orders, one.placement) == (other.orders, other.placement)


@pytest.mark.parametrize("options", [{"extra_warmup": 100}, {"group_size": 8, "extra_warmup": 100}])
def test_warmup_ends_with_the_forwards(options: dict[str, int]) -> None:
    schedule = get("interleaved-1f1b").build(2, num_microbatches=8, options=options)
    assert peak_activations(schedule) == (16, 16)


@pytest.mark.parametrize(
    ("ranks", "microbatches", "group_size"),
    [(4, 4, 0), (4, 8, 0), (4, 6, 6), (4, 9, 5), (4, 10, 5), (4, 7, 7), (4, 8, 8), (1, 7, 0), (1, 7, 3)],
)
def test_sizes_that_exist(ranks: int, microbatches: int, group_size: int) -> None:
    """p <= N <= m, and m mod N is 0 or at least p."""
    built = get("interleaved-1f1b").build(ranks, num_microbatches=microbatches, options={"group_size": group_size})
    assert built.num_microbatches == microbatches


REFUSED = [
    (4, 6, 0, r"divisible by num_ranks \(num_microbatches=6, num_ranks=4\); use 4 or 8; or group_size=6, with which 6"),
    (2, 3, 0, r"divisible by num_ranks \(num_microbatches=3, num_ranks=2\); use 2 or 4; or group_size=3"),
    (4, 3, 0, r"divisible by num_ranks \(num_microbatches=3, num_ranks=4\); use 4$"),
    (4, 8, 3, r"group_size of at least num_ranks \(group_size=3, num_ranks=4, num_microbatches=8\); use group_size=4"),
    (4, 3, 3, r"at least num_ranks \(.*\); use at least 4 microbatches and group_size=4"),
    (
        4,
        7,
        5,
        r"last group of at least num_ranks microbatches \(group_size=5, .*=7\), which leave 2; use 5 or 9; or .*7$",
    ),
    (4, 6, 8, r"num_microbatches of at least group_size \(group_size=8, .*\); use 8 or group_size=6"),
    (4, 3, 8, r"num_microbatches of at least group_size \(group_size=8, .*\); use 8$"),
]


@pytest.mark.parametrize(("ranks", "microbatches", "group_size", "message"), REFUSED)
def test_sizes_that_do_not_exist_are_refused_with_the_nearest(
    ranks: int, microbatches: int, group_size: int, message: str
) -> None:
    """Found out before any process starts."""
    with pytest.raises(ScheduleError, match=rf"^interleaved-1f1b needs .*{message}"):
        get("interleaved-1f1b").build(ranks, num_microbatches=microbatches, options={"group_size": group_size})


def test_the_advice_is_itself_accepted() -> None:
    for microbatches in (4, 8):
        get("interleaved-1f1b").build(4, num_microbatches=microbatches)
    for microbatches, group_size in ((6, 6), (5, 5), (9, 5), (7, 7)):
        get("interleaved-1f1b").build(4, num_microbatches=microbatches, options={"group_size": group_size})


def test_chunks_are_refused_where_a_schedule_has_one_stage_a_rank() -> None:
    """Plain 1F1B with four chunks on two ranks."""
    with pytest.raises(ScheduleError, match=r"1f1b has 1 stage per rank \(num_chunks=4\); use 1"):
        get("1f1b").build(2, num_microbatches=8, num_chunks=4)


def test_unknown_options_name_the_known() -> None:
    with pytest.raises(ScheduleError, match="no option 'group_sise'; did you mean 'group_size'"):
        get("interleaved-1f1b").build(4, num_microbatches=8, options={"group_sise": 4})
    with pytest.raises(ScheduleError, match="looped-bfs has no option 'group_size'; it takes none"):
        get("looped-bfs").build(4, num_microbatches=8, options={"group_size": 4})
