"""Who is to blame, from what a parent knows of every rank. Three ranks; the middle one is mostly the culprit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fullbore.errors import DataError, FullboreError, ModelError, NeighborLost, RankFailed, TransferStalled
from fullbore.runtime.processes.board import BoardEntry
from fullbore.runtime.processes.verdict import Outcome, verdict

NOW = 100_000_000_000
SECOND = 1_000_000_000


def entry(doing: str, *, age_s: float = 1.0, waiting: bool = False, period: str = "step 2", **more: Any) -> BoardEntry:
    return replace(BoardEntry(9, NOW - round(age_s * SECOND), 4.0, waiting, doing, period), **more)


def waits(rank: int) -> Outcome:
    return Outcome(rank, "running", entry(f"{rank}F3", waiting=True))


def failed(rank: int, error: FullboreError, *, age_s: float = 0.5, at: BoardEntry | None = None) -> Outcome:
    ended_ns = NOW - round(age_s * SECOND)
    return Outcome(rank, "failed", at or entry(f"{rank}F3"), ended_ns=ended_ns, error=error)


def stalled(rank: int) -> TransferStalled:
    return TransferStalled(f"rank {rank} waited 4 s in {rank}F3 of step 2", rank=rank, action=f"{rank}F3")


def lost(rank: int) -> NeighborLost:
    return NeighborLost(f"rank {rank} lost a neighbor", rank=rank, action=f"{rank}F3")


def said(*outcomes: Outcome) -> str:
    failure = verdict(outcomes, now_ns=NOW)
    assert failure is not None
    return str(failure)


def test_ranks_that_are_done_have_not_failed() -> None:
    assert verdict([Outcome(rank, "done", entry("closing")) for rank in range(2)], now_ns=NOW) is None


def test_a_death_is_the_cause_and_lost_neighbors_are_symptoms() -> None:
    gone = Outcome(1, "gone", entry("1F3"), ended_ns=NOW - SECOND, ending="exited with code 7")
    failure = verdict([failed(0, lost(0)), gone, failed(2, lost(2))], now_ns=NOW)
    assert str(failure) == "rank 1 exited with code 7 in 1F3 of step 2; the other ranks were ended"
    assert isinstance(failure, RankFailed)
    assert (failure.rank, failure.action) == (1, "1F3")


@pytest.mark.parametrize(
    ("ending", "more", "hint"),
    [
        ("was killed by SIGKILL", {}, " (if nobody sent it, the machine ran out of memory: use more stages"),
        ("was killed by SIGKILL", {"memory_ran_out": True}, " (the kernel has just ended a process for lack of memory"),
        ("was killed by SIGSEGV", {"stack": "model.py:12 in forward"}, " (model.py:12 in forward); the other"),
        ("was killed by SIGBUS", {"stack": "batches.py:7 in draw"}, " (a file that it had mapped became shorter"),
    ],
)
def test_how_a_process_died_hints_at_why(ending: str, more: dict[str, Any], hint: str) -> None:
    gone = Outcome(1, "gone", entry("1F3"), ended_ns=NOW, ending=ending, **more)
    assert f"rank 1 {ending} in 1F3 of step 2{hint}" in said(waits(0), gone, waits(2))


def test_of_two_causes_the_first_is_reported() -> None:
    """What one rank's error does to another process can be its death."""
    raised = failed(1, RankFailed("rank 1 failed in 1F3: ValueError", rank=1, action="1F3"), age_s=1.0)
    gone = Outcome(2, "gone", entry("2F3"), ended_ns=NOW, ending="was killed by SIGABRT")
    assert "ValueError" in said(waits(0), raised, gone)


def test_at_one_moment_a_death_comes_before_an_error() -> None:
    raised = failed(0, RankFailed("rank 0 failed in 0F3: RuntimeError", rank=0, action="0F3"), age_s=0.01)
    gone = Outcome(1, "gone", entry("1F3"), ended_ns=NOW, ending="was killed by SIGKILL")
    assert "SIGKILL" in said(raised, gone, waits(2))


def test_bad_input_on_every_rank_names_none() -> None:
    at = entry("building the model", period="")
    outcomes = [failed(rank, ModelError("no such layer"), at=at) for rank in range(2)]
    assert said(*outcomes, Outcome(2, "running", at)) == "no such layer"


def test_bad_input_that_others_got_past_names_its_rank() -> None:
    at = entry("building the model", period="")
    further = Outcome(0, "running", replace(at, sequence=10, doing="measuring the layers"))
    failure = verdict([further, failed(1, ModelError("no such layer"), at=at)], now_ns=NOW)
    assert str(failure) == "rank 1, while building the model: no such layer"
    assert isinstance(failure, ModelError)


def test_bad_input_in_the_middle_of_a_run_says_when() -> None:
    at = entry("drawing the batch")
    told = said(*(failed(rank, DataError("a token too high"), at=at) for rank in range(2)))
    assert told == "rank 0, while drawing the batch of step 2: a token too high"


def test_the_rank_that_works_while_the_others_wait_is_stuck() -> None:
    stuck = Outcome(1, "running", entry("1F3", age_s=5.0), stack="model.py:12 in forward")
    assert said(failed(0, stalled(0)), stuck, waits(2)) == (
        "rank 1 has been in 1F3 of step 2 for 5.0 s (model.py:12 in forward) and was ended; "
        "rank 0 waited 4 s in 0F3 of step 2"
    )


def test_the_one_that_works_the_longest_is_stuck() -> None:
    brief = Outcome(0, "running", entry("0B2", age_s=0.1))
    stuck = Outcome(1, "running", entry("1F3", age_s=5.0), stopped=True)
    assert "rank 1 has been in 1F3 of step 2 for 5.0 s (the process is stopped" in said(
        brief, stuck, failed(2, stalled(2))
    )


def test_a_rank_that_never_said_a_word_comes_before_one_that_works() -> None:
    silent = Outcome(1, "running", entry("", since_ns=0, period="", sequence=0))
    working = Outcome(0, "running", entry("measuring the layers", period=""))
    assert said(working, silent, failed(2, stalled(2))).startswith("rank 1 has been starting and was ended")


def test_where_nobody_waits_a_rank_that_takes_too_long_is_stuck() -> None:
    """All ranks draw from the same dead disk, or there is only one."""
    stuck = Outcome(0, "running", entry("drawing the batch", age_s=7.0), overdue=True)
    told = said(stuck, Outcome(1, "running", entry("drawing the batch", age_s=6.9), overdue=True))
    assert told == (
        "rank 0 has been drawing the batch of step 2 for 7.0 s and was ended; if it is only slow, raise train.timeout_s"
    )


def test_a_symptom_is_better_than_nothing() -> None:
    assert said(failed(0, stalled(0)), waits(1)) == "rank 0 waited 4 s in 0F3 of step 2"


def test_the_first_symptom_is_told() -> None:
    """Rank 0 came late, and found that the others had given it up."""
    assert said(failed(0, lost(0), age_s=0.1), failed(1, stalled(1), age_s=0.4)) == "rank 1 waited 4 s in 1F3 of step 2"


def test_where_all_wait_for_ever_the_waits_are_named() -> None:
    outcomes = [replace(waits(rank), overdue=True) for rank in range(2)]
    assert said(*outcomes) == (
        "no rank works, and all that are left wait for another (rank 0 in 0F3 of step 2 for 1.0 s, "
        "rank 1 in 1F3 of step 2 for 1.0 s); they were ended"
    )
