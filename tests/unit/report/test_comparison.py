from __future__ import annotations

import pytest

from fullbore.report.comparison import compare_schedules
from fullbore.schedules.registry import get


@pytest.mark.parametrize(("microbatches", "told"), [(500, []), (501, ["making gpipe", "making 1f1b"])])
def test_a_long_comparison_says_what_it_is_at(microbatches: int, told: list[str]) -> None:
    heard: list[str] = []
    found = compare_schedules(
        [get("gpipe"), get("1f1b")],
        num_ranks=2,
        num_microbatches=microbatches,
        num_chunks=None,
        cost="1,1,1",
        comm="0",
        memory_cap=None,
        tell=heard.append,
    )
    assert (len(found.rows), heard) == (2, told)
