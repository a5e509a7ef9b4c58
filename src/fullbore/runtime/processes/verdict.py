"""Verdict: the cause among the symptoms.

When one rank fails the others soon complain too: of a lost neighbor, of a message that never came. What a user needs
is the one sentence that names the first: its rank, what it was doing, and why. This is a pure function of what the
parent knows of every rank when it gives up.

A cause is one of: bad input, a process that died, an error of the rank's own, a rank that works for too long while
others wait. `NeighborLost` and `TransferStalled` are symptoms; they are reported only where no cause is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fullbore.errors import FullboreError, InputError, NeighborLost, RankFailed, TransferStalled
from fullbore.runtime.processes.blame import MORE_MEMORY
from fullbore.runtime.processes.board import BoardEntry

__all__ = ["Outcome", "is_symptom", "verdict"]

_AT_ONCE_NS = 200_000_000
"""Ends this close together have no order: then bad input comes before a death, and a death before an error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rank."""

    rank: int
    state: Literal["running", "done", "failed", "gone"]
    """``gone``: its process died without a word."""

    entry: BoardEntry
    ended_ns: int | None = None
    """When the parent heard of the end."""

    error: FullboreError | None = None
    ending: str = ""
    """How a process that is gone ended: ``was killed by SIGKILL``."""

    stack: str | None = None
    """``model.py:12 in forward``: where a process that crashed or does not come back was."""

    stopped: bool = False
    overdue: bool = False
    """It has been at one thing for longer than it may."""

    memory_ran_out: bool = False
    """The kernel has ended a process for lack of memory while this one ran."""

    @property
    def is_cause(self) -> bool:
        """Does this rank's end explain itself?"""
        return self.state == "gone" or (self.error is not None and not is_symptom(self.error))


def verdict(outcomes: Sequence[Outcome], *, now_ns: int) -> FullboreError | None:
    """The failure to report; None where every rank is done."""
    causes = [outcome for outcome in outcomes if outcome.is_cause]
    if causes:
        first_ns = min(outcome.ended_ns or now_ns for outcome in causes)
        together = [outcome for outcome in causes if (outcome.ended_ns or now_ns) - first_ns <= _AT_ONCE_NS]
        return _reported(min(together, key=lambda outcome: (_precedence(outcome), outcome.rank)), outcomes)
    in_time = sorted(outcomes, key=lambda outcome: outcome.ended_ns or now_ns)
    symptoms = [outcome.error for outcome in in_time if outcome.error is not None]
    late = _late(outcomes)
    if late is not None and (symptoms or any(outcome.overdue for outcome in outcomes)):
        return _stuck(late, symptom=symptoms[0] if symptoms else None, now_ns=now_ns)
    return symptoms[0] if symptoms else _all_wait(outcomes, now_ns=now_ns)


def is_symptom(error: FullboreError) -> bool:
    """Does it only say that another rank is late or gone?"""
    return isinstance(error, NeighborLost | TransferStalled)


def _precedence(outcome: Outcome) -> int:
    return 0 if isinstance(outcome.error, InputError) else 1 if outcome.state == "gone" else 2


def _reported(cause: Outcome, outcomes: Sequence[Outcome]) -> FullboreError:
    if cause.state == "gone":
        return _died(cause)
    assert cause.error is not None
    if isinstance(cause.error, InputError) and (cause.entry.period or _others_went_on(cause, outcomes)):
        cause.error.args = (f"rank {cause.rank}, {cause.entry.where()}: {cause.error}", *cause.error.args[1:])
    return cause.error


def _others_went_on(cause: Outcome, outcomes: Sequence[Outcome]) -> bool:
    """Bad input is mostly bad on every rank, and then no rank is named. Not where another one got past it."""
    return any(other.entry.sequence > cause.entry.sequence for other in outcomes)


def _died(gone: Outcome) -> RankFailed:
    hint = ""
    if "SIGKILL" in gone.ending:
        known = "the kernel has just ended a process for lack of memory"
        likely = "if nobody sent it, the machine ran out of memory"
        hint = f" ({known if gone.memory_ran_out else likely}: {MORE_MEMORY})"
    elif "SIGBUS" in gone.ending:
        hint = " (a file that it had mapped became shorter, or its disk failed)"
    elif gone.stack is not None:
        hint = f" ({gone.stack})"
    message = f"rank {gone.rank} {gone.ending} {gone.entry.where()}{hint}; the other ranks were ended"
    return RankFailed(message, rank=gone.rank, action=gone.entry.doing)


def _late(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The rank that is still working, rather than waiting, the longest; one that never said a word comes first."""
    working = [outcome for outcome in outcomes if outcome.state == "running" and not outcome.entry.waiting]
    return min(working, key=lambda outcome: outcome.entry.since_ns, default=None)


def _stuck(late: Outcome, *, symptom: FullboreError | None, now_ns: int) -> RankFailed:
    since = f" for {(now_ns - late.entry.since_ns) / 1e9:.1f} s" if late.entry.since_ns else ""
    if late.stopped:
        why = " (the process is stopped, as by SIGSTOP)"
    else:
        why = f" ({late.stack})" if late.stack is not None else ""
    rest = f"; {symptom}" if symptom is not None else "; if it is only slow, raise train.timeout_s"
    message = f"rank {late.rank} has been {late.entry.has_been()}{since}{why} and was ended{rest}"
    return RankFailed(message, rank=late.rank, action=late.entry.doing)


def _all_wait(outcomes: Sequence[Outcome], *, now_ns: int) -> RankFailed | None:
    """Nobody works and nobody gives up: the waits themselves are named."""
    waits = [outcome for outcome in outcomes if outcome.state == "running"]
    if not waits:
        return None
    first = min(waits, key=lambda outcome: outcome.entry.since_ns)
    told = ", ".join(f"rank {o.rank} {o.entry.where()} for {(now_ns - o.entry.since_ns) / 1e9:.1f} s" for o in waits)
    message = f"no rank works, and all that are left wait for another ({told}); they were ended"
    return RankFailed(message, rank=first.rank, action=first.entry.doing)
