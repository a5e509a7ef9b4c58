"""Split backwards on gloo processes: the bits that whole backwards give, whatever the model brings."""

from __future__ import annotations

from itertools import product

import pytest

from fullbore.runtime.processes.launch import launch
from tests.support.ranks import PRELOAD
from tests.support.split_ranks import MODELS, Compared

MOSTLY = [name for name in MODELS if name != "unknown"]


def compare(cases: list[tuple[str, str, int, bool]], *, num_ranks: int) -> list[list[Compared]]:
    """By case and rank."""
    by_rank = launch("tests.support.split_ranks:compare_all", cases, num_ranks=num_ranks, preload=PRELOAD)
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def assert_same(case: object, ranks: list[Compared]) -> None:
    for rank, seen in enumerate(ranks):
        where = f"{case}, rank {rank}"
        assert seen.different == (), where
        assert seen.losses[0] == seen.losses[1], where
        assert seen.norms[0] == seen.norms[1], where
        assert seen.finite, where
    assert sum(seen.num_gradients for seen in ranks) > 0


@pytest.mark.parametrize(
    ("kind", "recompute"),
    [
        ("late", False),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("1f1i", False), ("1f1i", True), ("late", True))),
    ],
)
def test_two_ranks(kind: str, recompute: bool) -> None:
    """m odd, lengths and numbers of samples uneven, two steps that add up; tied over ranks, frozen, adapters, dropout,
    a loss in chunks, bfloat16 and float16."""
    cases = [(model, kind, 3, recompute) for model in MOSTLY]
    for case, ranks in zip(cases, compare(cases, num_ranks=2), strict=True):
        assert_same(case, ranks)
        assert [seen.said for seen in ranks] == [(), ()], "every class is known"
        if case[0] not in ("frozen", "adapted"):
            assert all(seen.peak_held_bytes > 0 for seen in ranks)


def test_whole_and_split_backwards_in_one_schedule_and_two_stages_a_rank() -> None:
    cases = [
        (model, kind, m, recompute)
        for model, (kind, m), recompute in product(
            ("untied", "tied", "with_weights", "narrow"), (("mixed", 4), ("v", 3)), (False, True)
        )
    ]
    for case, ranks in zip(cases, compare(cases, num_ranks=2), strict=True):
        if case[1] == "v":
            assert_same(case, ranks)
            continue
        for seen in ranks:  # W of the odd microbatches comes after B of the even ones: the same terms in another order
            assert seen.losses[0] == seen.losses[1], case
            assert seen.error <= 1e-5, case


@pytest.mark.slow
def test_four_ranks() -> None:
    cases = [
        (model, "1f1i", 7, recompute) for model, recompute in product(("tied", "frozen", "adapted"), (False, True))
    ]
    for case, ranks in zip(cases, compare(cases, num_ranks=4), strict=True):
        assert_same(case, ranks)


def test_a_class_without_an_entry_is_said_once_though_it_is_on_another_rank() -> None:
    (ranks,) = compare([("unknown", "1f1i", 3, False)], num_ranks=2)
    assert_same("unknown", ranks)
    (said,) = ranks[0].said
    assert said == (
        "schedule 1f1i splits backwards, but the backward of these modules stays whole, at I: Scale (1); nothing is "
        "registered for their forward, or they are compiled, or what they use as a weight is no parameter of theirs "
        "(see fullbore.register_weight_split)"
    )
    assert ranks[1].said == ()
