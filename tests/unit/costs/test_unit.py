from __future__ import annotations

from fractions import Fraction

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.costs.unit import parse_unit_costs
from fullbore.errors import CostsError
from fullbore.ir.placement import Placement


def test_whole_numbers_are_one_tick_each() -> None:
    costs = parse_unit_costs("1,2,3", num_ranks=2)
    assert costs.chunk_of_rank == (StageCost(1, 2, 3), StageCost(1, 2, 3))
    assert costs.links == (Link(0),)
    assert costs.scale == 1


def test_decimals_are_exact() -> None:
    costs = parse_unit_costs("1,1.2,.8", num_ranks=1)
    assert (costs.scale, costs.chunk_of_rank) == (5, (StageCost(5, 6, 4),))
    assert costs.units(12) == Fraction(12, 5)


def test_a_tenth_is_a_tenth() -> None:
    """Ten times 0.1 is 1; floats would make it 0.9999999999999999."""
    costs = parse_unit_costs("0.1,0.2,0.3", num_ranks=1)
    assert (costs.scale, costs.chunk_of_rank[0].total) == (10, 6)


def test_a_chunk_is_its_part_of_the_share() -> None:
    costs = parse_unit_costs("1,1,1", num_ranks=2, num_chunks=3, comm="0.5")
    assert (costs.scale, costs.chunk_of_rank[0]) == (6, StageCost(2, 2, 2))
    assert costs.links == (Link(3),) * 5
    assert costs.scale % 3 == 0


def test_a_list_has_one_value_a_rank() -> None:
    costs = parse_unit_costs("1:2,3,4:5", num_ranks=2, num_chunks=2)
    share_of_rank_0, share_of_rank_1 = StageCost(1, 3, 4), StageCost(2, 3, 5)
    assert costs.scale == 2
    assert costs.of(Placement.loop(2, num_chunks=2)) == (share_of_rank_0, share_of_rank_1) * 2
    assert costs.of(Placement.snake(2, num_chunks=2)) == (
        share_of_rank_0,
        share_of_rank_1,
        share_of_rank_1,
        share_of_rank_0,
    )


def test_comm_has_one_value_a_boundary() -> None:
    costs = parse_unit_costs("1,1,1", num_ranks=3, comm="0.25:2")
    assert (costs.scale, costs.links) == (4, (Link(1), Link(8)))


def test_one_rank_has_no_boundary() -> None:
    assert parse_unit_costs("1,1,0", num_ranks=1, comm="3").links == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,1", r"a cost is forward, .*as in 1,1,1 \(given 2 part\(s\): '1,1'\)"),
        ("1,1,1,1", r"given 4 part\(s\)"),
        ("1,-1,1", r"decimal number of at least 0.*\(the backward for the input in cost '1,-1,1': '-1'\)"),
        ("1,,1", r"decimal number.*''"),
        ("1,nan,1", r"decimal number.*'nan'"),
        ("1,1e3,1", r"decimal number.*'1e3'"),
        (" 1,1,1", r"decimal number.*' 1'"),
        ("1,1,٣", r"decimal number.*'٣'"),
        ("1:2:3,1,1", r"one value for each rank, 4 of them \(the forward in cost '1:2:3,1,1': given 3\)"),
        ("0,0,0", r"at least one cost must be above 0"),
    ],
)
def test_bad_costs_are_refused(text: str, message: str) -> None:
    with pytest.raises(CostsError, match=message):
        parse_unit_costs(text, num_ranks=4)


def test_bad_comm_is_refused() -> None:
    with pytest.raises(CostsError, match=r"one value for each boundary, 3 of them \(comm '1:2': given 2\)"):
        parse_unit_costs("1,1,1", num_ranks=4, comm="1:2")
    with pytest.raises(CostsError, match=r"decimal number of at least 0.*\(comm 'x': 'x'\)"):
        parse_unit_costs("1,1,1", num_ranks=4, comm="x")


def test_sizes_are_checked() -> None:
    with pytest.raises(CostsError, match=r"num_chunks must be at least 1 \(num_chunks=0\)"):
        parse_unit_costs("1,1,1", num_ranks=4, num_chunks=0)


def test_a_slice_is_its_part_of_a_chunk() -> None:
    costs = parse_unit_costs("1,1,1", num_ranks=2, num_chunks=2, num_slices=3)
    assert (costs.scale, costs.chunk_of_rank[0], len(costs.links)) == (6, StageCost(1, 1, 1), 3)


def test_two_streams_take_whole_shares_over_the_same_boundaries() -> None:
    costs = parse_unit_costs("1:2:3,1,1", num_ranks=3, num_chunks=2, num_streams=2, comm="4:5")
    assert (costs.scale, costs.links) == (1, (Link(4), Link(5), Link(0), Link(4), Link(5)))
    assert [cost.forward for cost in costs.of(Placement.bidirectional(3))] == [1, 2, 3, 1, 2, 3]
    with pytest.raises(CostsError, match=r"one value for each boundary, 2 of them .*given 3"):
        parse_unit_costs("1,1,1", num_ranks=3, num_chunks=2, num_streams=2, comm="1:2:3")
