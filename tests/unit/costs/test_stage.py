from __future__ import annotations

import pytest

from fullbore.costs.stage import StageCost
from fullbore.ir.action import Kind


@pytest.mark.parametrize(("recompute", "taken"), [(None, 3), (0, 0), (7, 7)])
def test_a_recomputation_takes_the_same_ahead_and_inside(recompute: int | None, taken: int) -> None:
    ahead = StageCost(3, 2, 1, recompute)
    inside = ahead.recomputing_inside
    assert ahead.of(Kind.RECOMPUTE) == taken
    assert inside == StageCost(3, 2 + taken, 1, 0)
