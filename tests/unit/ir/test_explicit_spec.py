from __future__ import annotations

import pytest

from fullbore.errors import InvalidSchedule
from fullbore.ids import Rank
from fullbore.ir.blocking import BlockingRule, blocking_problems, wait_cycles
from fullbore.ir.explicit import ExplicitSchedule, explicit_of
from fullbore.ir.explicit_spec import ExplicitRule, check_explicit, explicit_problems
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.ir.torch_csv import parse_torch_csv
from fullbore.ir.torch_lower import with_transfers
from fullbore.schedules.gpipe import gpipe
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward
from tests.timetable import schedule_of

FIRST = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"
SECOND = "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1"


def explicit(*rows: str) -> ExplicitSchedule:
    found = parse_torch_csv("\n".join(",".join(row.split()) for row in rows), name="rows", where="rows").schedule
    assert isinstance(found, ExplicitSchedule)
    return found


def moved(row: str, cell: str, *, before: str) -> str:
    words = [word for word in row.split() if word != cell]
    words.insert(words.index(before), cell)
    return " ".join(words)


def test_good_rows_have_no_problem() -> None:
    assert explicit_problems(explicit(FIRST, SECOND)) == ()
    assert wait_cycles(explicit(FIRST, SECOND)) == ()
    late_send = FIRST.replace("0F0 0SEND_F0 0F1 0SEND_F1", "0F0 0F1 0SEND_F0 0SEND_F1")
    assert explicit_problems(explicit(late_send, SECOND)) == ()


@pytest.mark.parametrize(
    ("first", "second", "rule", "place", "message"),
    [
        (FIRST.replace("0B1", "0B1 0SEND_B0"), SECOND, ExplicitRule.KNOWN_BOUNDARY, (0, 8), "0SEND_B0 .* no message"),
        (FIRST, SECOND.replace("1B1", "1SEND_F0 1B1"), ExplicitRule.KNOWN_BOUNDARY, (1, 6), "1SEND_F0 .* no message"),
        (FIRST, SECOND + " 1RECV_F7", ExplicitRule.KNOWN_BOUNDARY, (1, 8), "1RECV_F7 .* no message"),
        (FIRST + " 1SEND_B0", SECOND, ExplicitRule.OWN_TRANSFER, (0, 8), "1SEND_B0 on rank 0: rank 1 holds stage 1"),
        (FIRST + " 0SEND_F0", SECOND, ExplicitRule.PAIRED, (0, 8), "0SEND_F0 on rank 0 is there 2 times"),
        (FIRST.replace(" 0SEND_F1", ""), SECOND, ExplicitRule.PAIRED, (0, None), "0SEND_F1 is missing on rank 0"),
        (FIRST, SECOND.replace("1SEND_B1", ""), ExplicitRule.PAIRED, (1, None), "1SEND_B1 is missing on rank 1"),
        (FIRST, SECOND + " 1RECV_F1", ExplicitRule.PAIRED, (1, 8), "1RECV_F1 on rank 1 is there 2 times"),
        (FIRST.replace(" 0RECV_B1", ""), SECOND, ExplicitRule.PAIRED, (0, None), "0RECV_B1 is missing on rank 0"),
        (
            moved(FIRST, "0SEND_F1", before="0F1"),
            SECOND,
            ExplicitRule.SENT_AFTER_MADE,
            (0, 2),
            "0SEND_F1 on rank 0 comes before the action that makes it",
        ),
        (
            FIRST,
            moved(SECOND, "1RECV_F1", before="1B1"),
            ExplicitRule.RECEIVED_BEFORE_USE,
            (1, 4),
            "1F1 on rank 1 has no 1RECV_F1 before it",
        ),
        (
            FIRST,
            moved(SECOND, "1RECV_F1", before="1RECV_F0"),
            ExplicitRule.LANE_ORDER,
            (1, 0),
            "1RECV_F1 on rank 1 stands where rank 0 has 0SEND_F0 as its next send",
        ),
    ],
)
def test_each_rule_is_named_with_its_cell(
    first: str, second: str, rule: ExplicitRule, place: tuple[int, int | None], message: str
) -> None:
    rows = explicit(first, second)
    assert place in [(p.rank, p.position) for p in explicit_problems(rows) if p.rule == rule]
    with pytest.raises(InvalidSchedule, match=message) as raised:
        check_explicit(rows)
    assert rule.value in raised.value.rules


def test_a_fault_of_the_compute_part_has_its_place_in_the_row() -> None:
    (found,) = explicit_problems(explicit(FIRST, SECOND.replace("1F1 1B1", "1B1 1F1")))
    assert (found.rule, found.rank, found.position, str(found.action)) == ("own-forward-first", 1, 5, "1B1")


def test_activations_and_gradients_between_the_same_ranks_share_their_order() -> None:
    """Stages 0 and 2 on rank 0, 1 on rank 1: rank 0 sends activations of stage 0 and gradients of stage 2."""
    orders = ["0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1", "1F0 1F1 1B0 1B1"]
    good = with_transfers(schedule_of([0, 1, 0], orders, num_microbatches=2))
    assert explicit_problems(good) == ()
    row = list(good.orders[1])
    gradient = next(i for i, cell in enumerate(row) if str(cell) == "1RECV_B0")
    row.insert(1, row.pop(gradient))
    late = ExplicitSchedule(good.name, good.placement, 2, (good.orders[0], tuple(row)))
    assert [problem.rule for problem in explicit_problems(late)] == [ExplicitRule.LANE_ORDER]


def test_both_operations_of_a_wait_cycle_are_named() -> None:
    (found,) = blocking_problems(explicit(FIRST, moved(SECOND, "1RECV_F1", before="1F1")))
    assert (found.rule, found.rank, found.position) == (BlockingRule.NO_WAIT_CYCLE, 0, 3)
    assert found.message == (
        "rank 0 at 0SEND_F1 waits for 1RECV_F1 of rank 1, which stands before at 1SEND_B0; "
        "rank 1 at 1SEND_B0 waits for 0RECV_B0 of rank 0, which stands before at 0SEND_F1: "
        "none of them can ever complete"
    )


def test_a_rank_behind_a_cycle_is_not_part_of_it_and_each_cycle_is_its_own() -> None:
    """Plain 1F1B with blocking sends stalls all ranks; the cycle is between the last two."""
    rows = explicit_of(lower(one_forward_one_backward(4, num_microbatches=8)), name="1f1b")
    (cycle,) = wait_cycles(rows)
    assert [blocked.rank for blocked in cycle] == [2, 3]


@pytest.mark.parametrize(("p", "m", "cycles"), [(1, 4, 0), (2, 1, 0), (2, 2, 1), (3, 2, 1), (8, 32, 1)])
def test_plain_1f1b_has_a_cycle_where_sends_block_and_gpipe_has_none(p: int, m: int, cycles: int) -> None:
    plain = explicit_of(lower(one_forward_one_backward(p, num_microbatches=m)), name="1f1b")
    assert len(wait_cycles(plain)) == cycles
    assert wait_cycles(explicit_of(lower(gpipe(p, num_microbatches=m)), name="gpipe")) == ()
    assert wait_cycles(with_transfers(one_forward_one_backward(p, num_microbatches=m))) == ()


def test_a_cycle_starts_at_its_lowest_rank() -> None:
    """Stages 0, 1, 2 on ranks 0, 2, 1: rank 0 waits for rank 2, which is in the cycle with rank 1."""
    row, later, last = one_forward_one_backward(3, num_microbatches=3).orders
    turned = Schedule("turned", Placement((Rank(0), Rank(2), Rank(1))), 3, (row, last, later))
    (cycle,) = wait_cycles(explicit_of(lower(turned), name="turned"))
    assert [blocked.rank for blocked in cycle] == [1, 2]


def test_stages_of_one_rank_hand_over_without_a_message() -> None:
    snake = "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0", "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0"
    assert explicit_problems(explicit(*snake)) == ()
    found = explicit_problems(explicit(snake[0], snake[1].replace("1F0 2F0", "1F0 1SEND_F0 2RECV_F0 2F0")))
    assert [(p.rule, p.rank, p.position) for p in found] == [
        (ExplicitRule.KNOWN_BOUNDARY, 1, 2),
        (ExplicitRule.KNOWN_BOUNDARY, 1, 3),
    ]


def test_a_partner_that_has_ended_is_no_cycle() -> None:
    assert wait_cycles(explicit(FIRST + " 0SEND_F0", SECOND)) == ()


def test_every_rule_has_a_reason() -> None:
    assert all(rule.reason for rules in (ExplicitRule, BlockingRule) for rule in rules)
