from __future__ import annotations

import pytest

from fullbore.errors import InvalidSchedule, ScheduleError
from fullbore.ids import Rank
from fullbore.ir.action import Compute
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import Rule, problems, validate
from tests.timetable import schedule_of

GOOD = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")


def two_ranks(*orders: str, num_microbatches: int = 2) -> Schedule:
    return schedule_of([0, 1], orders, num_microbatches=num_microbatches)


@pytest.mark.parametrize(
    "orders",
    [
        GOOD,
        ("0F0 0F1", "1F0 1F1"),
        ("0F0 0F1 0I0 0W0 0B1", "1F0 1I0 1F1 1W0 1B1"),
        ("0F0 0R0 0B0 0F1 0B1", "1F0 1B0 1F1 1R1 1I1 1W1"),
    ],
    ids=["whole", "forward-only", "mixed-split", "recompute"],
)
def test_legal_schedules_have_no_problem(orders: tuple[str, str]) -> None:
    assert problems(two_ranks(*orders)) == ()
    validate(two_ranks(*orders))


@pytest.mark.parametrize(
    ("orders", "rule", "place", "message"),
    [
        (("0F0 0F1 0B0 0B1 2F0", GOOD[1]), Rule.KNOWN_STAGE, (0, 4, "2F0"), r"2F0 on rank 0: stages are 0 to 1"),
        (("0F0 0F1 0B0 0B1 0F2", GOOD[1]), Rule.KNOWN_MICROBATCH, (0, 4, "0F2"), r"microbatches are 0 to 1"),
        (("0F0 0F1 0B0", "1F0 1B0 1F1 1B1 0B1"), Rule.OWN_STAGE, (1, 4, "0B1"), r"rank 0 holds stage 0"),
        (("0F0 0F1 0B0 0B1 0B1", GOOD[1]), Rule.ONCE, (0, 4, "0B1"), r"0B1 on rank 0 is there twice"),
        (("0F0 0F1 0B0", GOOD[1]), Rule.COMPLETE, (0, None, "0B1"), r"0B1 is missing on rank 0"),
        (("0F0 0B0 0B1", GOOD[1]), Rule.COMPLETE, (0, None, "0F1"), r"0F1 is missing on rank 0"),
        (("0F0 0F1 0B0 0I1", GOOD[1]), Rule.COMPLETE, (0, None, "0W1"), r"0W1 is missing on rank 0"),
        (("0F0 0F1 0B0 0W1", GOOD[1]), Rule.COMPLETE, (0, None, "0I1"), r"0I1 is missing on rank 0"),
        (("0F0 0F1 0B0 0B1 0W1", GOOD[1]), Rule.WHOLE_OR_SPLIT, (0, None, "0B1"), r"has B and also I or W"),
        (("0F0 0B1 0F1 0B0", GOOD[1]), Rule.FORWARD_FIRST, (0, 1, "0B1"), r"0B1 comes before 0F1 on rank 0"),
        (("0F0 0F1 0B0 0W1 0I1", GOOD[1]), Rule.INPUT_BEFORE_WEIGHT, (0, 3, "0W1"), r"0W1 comes before 0I1"),
        (("0F0 0F1 0B0 0R0 0B1", GOOD[1]), Rule.FORWARD_FIRST, (0, 3, "0R0"), r"0R0 comes after 0B0"),
        (("0R0 0F0 0F1 0B0 0B1", GOOD[1]), Rule.FORWARD_FIRST, (0, 0, "0R0"), r"0R0 comes before 0F0"),
    ],
)
def test_each_rule_is_named_with_its_place(
    orders: tuple[str, str], rule: Rule, place: tuple[int, int | None, str], message: str
) -> None:
    bad = two_ranks(*orders)
    rank, position, action = place
    found = [problem for problem in problems(bad) if problem.rule == rule]
    assert [(p.rank, p.position, p.action) for p in found] == [(rank, position, Compute.parse(action))]
    with pytest.raises(InvalidSchedule, match=message) as raised:
        validate(bad)
    assert rule.value in raised.value.rules


def test_a_cycle_of_waits_names_its_ranks_and_actions() -> None:
    bad = two_ranks("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    (found,) = problems(bad)
    assert (found.rule, found.rank, found.position) == (Rule.NO_CYCLE, Rank(0), 1)
    assert found.message == (
        "rank 0 at 0B0 waits for the gradient of stage 1, microbatch 0; "
        "rank 1 at 1F1 waits for the activation of stage 0, microbatch 1: none of them can ever start"
    )
    with pytest.raises(InvalidSchedule, match=r"\nrank 0   0F0  \[0B0\]  0F1   0B1   <-- rank 0, position 1: no-cycle"):
        validate(bad)


def test_a_rank_behind_the_cycle_is_not_named_as_part_of_it() -> None:
    bad = schedule_of(
        [0, 1, 2],
        ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1"],
        num_microbatches=2,
    )
    (found,) = problems(bad)
    assert found.message.startswith("rank 1 at 1B0 waits for the gradient of stage 2, microbatch 0; rank 2 at 2F1")
    assert "rank 0" not in found.message


def test_a_cycle_within_one_rank_that_holds_both_stages() -> None:
    (found,) = problems(schedule_of([0, 0], ["0F0 0B0 1F0 1B0"], num_microbatches=1))
    assert found.message == "rank 0 at 0B0 waits for the gradient of stage 1, microbatch 0: none of them can ever start"


def test_one_order_a_rank() -> None:
    bad = Schedule("short", Placement.linear(2), 1, ((Compute.parse("0F0"),),))
    with pytest.raises(InvalidSchedule, match="the placement has 2 ranks, the schedule 1 orders") as raised:
        validate(bad)
    assert raised.value.rules == ("one-order-a-rank",)


def test_a_long_list_of_problems_is_cut() -> None:
    with pytest.raises(InvalidSchedule, match=r"breaks 10 rule\(s\)[\s\S]*and 5 more"):
        validate(two_ranks("0F0 0B0", "", num_microbatches=3))


def test_every_rule_has_a_reason() -> None:
    assert all(rule.reason for rule in Rule)


def test_a_bound_on_what_is_in_flight_names_the_first_forward_too_many() -> None:
    assert problems(two_ranks(*GOOD), most_in_flight=[2, 1]) == ()
    found = problems(two_ranks(*GOOD), most_in_flight=[1, 0])
    assert [(p.rule, p.rank, p.position, str(p.action)) for p in found] == [
        (Rule.IN_FLIGHT, 0, 1, "0F1"),
        (Rule.IN_FLIGHT, 1, 0, "1F0"),
    ]
    with pytest.raises(InvalidSchedule, match="0F1 on rank 0 is activation 2 in flight, of at most 1"):
        validate(two_ranks(*GOOD), most_in_flight=[1, 1])
    with pytest.raises(ScheduleError, match=r"one number a rank, 2 of them \(given 1\)"):
        problems(two_ranks(*GOOD), most_in_flight=[1])


def test_split_backwards_keep_until_the_weights_and_evaluation_keeps_nothing() -> None:
    split = schedule_of([0], ["0F0 0I0 0F1 0W0 0I1 0W1"], num_microbatches=2)
    assert [p.position for p in problems(split, most_in_flight=[1])] == [2]
    assert problems(schedule_of([0], ["0F0 0F1"], num_microbatches=2), most_in_flight=[0]) == ()


@pytest.mark.parametrize("microbatches", [0, 10**9])
def test_a_mistyped_number_of_microbatches_is_one_problem(microbatches: int) -> None:
    orders = GOOD if microbatches else ("", "")
    found = problems(two_ranks(*orders, num_microbatches=microbatches))
    assert [(p.rule, p.place) for p in found if p.rule is Rule.COMPLETE] == [(Rule.COMPLETE, "no rank")]
    assert "are needed, at least 1 (2 stages" in found[-1].message
