"""Large messages in both directions at once, and ranks that come late: nothing is lost and nothing hangs.

pytorch PR #152938 (fixes #132644): a batched send and receive on gloo gives several handles; waiting for one of them
loses the others. PiPPy #1130, ColossalAI #3383: large messages that meet on their way hang.
"""

from __future__ import annotations

import pytest

from fullbore.runtime.processes.launch import launch
from tests.support.large_ranks import FACTORS, SIDE
from tests.support.ranks import PRELOAD

MICROBATCHES = 8


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("schedule", "steps", "nap_s"),
    [("1f1b", 3, 0.05), ("eager-1f1b", 2, 0.0), pytest.param("1f1b", 20, 0.05, marks=pytest.mark.slow)],
)
def test_sixteen_megabytes_each_way(schedule: str, steps: int, nap_s: float) -> None:
    """A microbatch of i's has a mean of i w0 w1: both gradients are known. The naps change the time only."""
    arguments = (schedule, MICROBATCHES, steps, nap_s)
    by_rank = launch("tests.support.large_ranks:large_messages", *arguments, num_ranks=2, preload=PRELOAD)
    mean = sum(range(MICROBATCHES)) / MICROBATCHES
    assert SIDE * SIDE * 4 == 16 * 2**20
    assert by_rank[0] == pytest.approx([mean * FACTORS[1]] * steps, rel=1e-5)
    assert by_rank[1] == pytest.approx([mean * FACTORS[0]] * steps, rel=1e-5)
