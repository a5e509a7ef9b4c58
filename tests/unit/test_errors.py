"""Every error crosses a process boundary with its message and its facts."""

from __future__ import annotations

import copy
import pickle

import pytest

from fullbore import errors
from fullbore.errors import FullboreError, InvalidSchedule, NeighborLost, RankFailed, TransferStalled
from fullbore.partition.partition import NothingFits

WITH_FACTS: list[FullboreError] = [
    InvalidSchedule("a cycle", rules=("no-cycle", "complete")),
    NothingFits("too small", nearest_bytes=4096),
    *(kind("gone", rank=3, action="2F0") for kind in (RankFailed, NeighborLost, TransferStalled)),
]


@pytest.mark.parametrize(
    "error",
    [
        *WITH_FACTS,
        *(
            getattr(errors, name)("what and where")
            for name in errors.__all__
            if name not in {type(error).__name__ for error in WITH_FACTS}
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: FullboreError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))
