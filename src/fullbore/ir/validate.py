"""Validate: the rules a compute-only schedule must keep, each with a name and a reason.

`problems` reports every violated rule; `validate` raises at the first sight of one and prints the place:

    rank 1   0F0  1F0 [1B1]          own-forward-first: 1B1 comes before 1F1

A schedule without any backward is a forward-only one, for evaluation, and legal. Linear in the number of actions:
the last rule (rank orders and data have no cycle) is one walk, `fullbore.ir.flow`.
The spec *after* lowering is another one: `fullbore.ir.program_spec`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fullbore.errors import InvalidSchedule
from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind, Message
from fullbore.ir.flow import Stuck, flow, own_input
from fullbore.ir.schedule import Schedule

__all__ = ["Problem", "Rule", "problems", "raise_problems", "validate"]


class Rule(StrEnum):
    """The rules, in the order in which they are checked. ``reason`` says why each one stands."""

    ONE_ORDER_A_RANK = "one-order-a-rank"
    KNOWN_STAGE = "known-stage"
    KNOWN_MICROBATCH = "known-microbatch"
    OWN_STAGE = "own-stage"
    ONCE = "once"
    COMPLETE = "complete"
    WHOLE_OR_SPLIT = "whole-or-split"
    FORWARD_FIRST = "own-forward-first"
    INPUT_BEFORE_WEIGHT = "input-before-weight"
    NO_CYCLE = "no-cycle"

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS = {
    Rule.ONE_ORDER_A_RANK: "every rank walks exactly one order",
    Rule.KNOWN_STAGE: "a stage that the placement lacks has no layers and no rank",
    Rule.KNOWN_MICROBATCH: "a microbatch from beyond the step has no data",
    Rule.OWN_STAGE: "only the rank that holds a stage has its weights",
    Rule.ONCE: "an action done twice counts a microbatch twice in the gradient",
    Rule.COMPLETE: "an action left out loses a microbatch, and the gradient with it",
    Rule.WHOLE_OR_SPLIT: "a backward is whole (B) or split (I and W); both would count it twice",
    Rule.FORWARD_FIRST: "a backward or a recomputation needs what its own forward kept",
    Rule.INPUT_BEFORE_WEIGHT: "the weight gradient is what the backward for the input left to do",
    Rule.NO_CYCLE: "ranks that wait for each other in a circle never finish",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule and its place; the place is None where the fault is that something is missing."""

    rule: str
    rank: Rank | None
    position: int | None
    action: Compute | None
    message: str


def validate(schedule: Schedule) -> None:
    """Raise `InvalidSchedule` unless every rule holds."""
    raise_problems(problems(schedule), schedule=schedule)


def raise_problems(found: tuple[Problem, ...], *, schedule: Schedule) -> None:
    """Raise `InvalidSchedule` with the first few problems, and the rank's order with the cell marked."""
    if not found:
        return
    shown = [f"  {problem.rule}: {problem.message}{_excerpt(problem, schedule)}" for problem in found[:5]]
    more = [f"  and {len(found) - 5} more"] if len(found) > 5 else []
    raise InvalidSchedule(
        "\n".join([f"schedule {schedule.name!r} breaks {len(found)} rule(s):", *shown, *more]),
        rules=tuple(dict.fromkeys(str(problem.rule) for problem in found)),
    )


def problems(schedule: Schedule) -> tuple[Problem, ...]:
    """Every violated rule, in the order of `Rule`. The cycle rule is checked once the others hold."""
    if len(schedule.orders) != schedule.num_ranks:
        text = f"the placement has {schedule.num_ranks} ranks, the schedule {len(schedule.orders)} orders"
        return (Problem(Rule.ONE_ORDER_A_RANK, None, None, None, text),)
    found = [*_places(schedule), *_counts(schedule), *_local_order(schedule)]
    if not found:
        found.extend(_cycle(schedule))
    ranking = list(Rule)
    return tuple(sorted(found, key=lambda problem: ranking.index(Rule(problem.rule))))


def _places(schedule: Schedule) -> Iterator[Problem]:
    for rank, order in enumerate(schedule.orders):
        for position, action in enumerate(order):
            where = (Rank(rank), position, action)
            if not 0 <= action.stage < schedule.num_stages:
                text = f"{action} on rank {rank}: stages are 0 to {schedule.num_stages - 1}"
                yield Problem(Rule.KNOWN_STAGE, *where, text)
            elif schedule.placement.rank_of(action.stage) != rank:
                owner = schedule.placement.rank_of(action.stage)
                yield Problem(
                    Rule.OWN_STAGE, *where, f"{action} on rank {rank}: rank {owner} holds stage {action.stage}"
                )
            if not 0 <= action.microbatch < schedule.num_microbatches:
                text = f"{action} on rank {rank}: microbatches are 0 to {schedule.num_microbatches - 1}"
                yield Problem(Rule.KNOWN_MICROBATCH, *where, text)


def _counts(schedule: Schedule) -> Iterator[Problem]:
    seen: set[Compute] = set()
    for rank, order in enumerate(schedule.orders):
        for position, action in enumerate(order):
            if action in seen:
                yield Problem(Rule.ONCE, Rank(rank), position, action, f"{action} on rank {rank} is there twice")
            seen.add(action)
    forward_only = all(action.kind is Kind.FORWARD for action in seen)
    for stage in map(StageIndex, range(schedule.num_stages)):
        rank = schedule.placement.rank_of(stage)
        for microbatch in map(MicrobatchIndex, range(schedule.num_microbatches)):
            has = {kind: Compute(stage, kind, microbatch) in seen for kind in Kind}
            missing: list[Kind] = [] if has[Kind.FORWARD] else [Kind.FORWARD]
            split = has[Kind.BACKWARD_INPUT] or has[Kind.BACKWARD_WEIGHT]
            if has[Kind.BACKWARD] and split:
                text = f"stage {stage}, microbatch {microbatch} on rank {rank} has B and also I or W"
                yield Problem(Rule.WHOLE_OR_SPLIT, rank, None, Compute(stage, Kind.BACKWARD, microbatch), text)
            elif split:
                missing += [kind for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT) if not has[kind]]
            elif not has[Kind.BACKWARD] and not forward_only:
                missing.append(Kind.BACKWARD)
            for kind in missing:
                action = Compute(stage, kind, microbatch)
                yield Problem(Rule.COMPLETE, rank, None, action, f"{action} is missing on rank {rank}")


def _local_order(schedule: Schedule) -> Iterator[Problem]:
    for rank, order in enumerate(schedule.orders):
        first_at: dict[Compute, int] = {}
        for position, action in enumerate(order):
            first_at.setdefault(action, position)
        for position, action in enumerate(order):
            before = own_input(action)
            late = before is not None and first_at.get(before, -1) > position
            if late and before is not None:
                rule = Rule.INPUT_BEFORE_WEIGHT if action.kind is Kind.BACKWARD_WEIGHT else Rule.FORWARD_FIRST
                text = f"{action} comes before {before} on rank {rank}"
                yield Problem(rule, Rank(rank), position, action, text)
            if action.kind is Kind.RECOMPUTE:
                for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
                    user = Compute(action.stage, kind, action.microbatch)
                    if first_at.get(user, position) < position:
                        text = f"{action} comes after {user} on rank {rank}, which needs it"
                        yield Problem(Rule.FORWARD_FIRST, Rank(rank), position, action, text)


def _cycle(schedule: Schedule) -> Iterator[Problem]:
    stuck = {blocked.rank: blocked for blocked in flow(schedule).stuck}
    if not stuck:
        return
    circle = _follow(stuck, schedule)
    first = circle[0]
    text = "; ".join(str(blocked) for blocked in circle)
    yield Problem(Rule.NO_CYCLE, first.rank, first.position, first.action, f"{text}: none of them can ever start")


def _follow(stuck: dict[Rank, Stuck], schedule: Schedule) -> list[Stuck]:
    """From any blocked rank to the one that owes it data, until a rank repeats: that is the circle."""
    path: list[Stuck] = []
    rank = min(stuck)
    while stuck[rank] not in path:
        path.append(stuck[rank])
        wanted = stuck[rank].waits_for
        assert isinstance(wanted, Message), "local order is checked before cycles"
        rank = schedule.placement.rank_of(wanted.stage)
    return path[path.index(stuck[rank]) :]


def _excerpt(problem: Problem, schedule: Schedule) -> str:
    """The neighbourhood of the cell in its rank's order, the cell in brackets."""
    if problem.rank is None or problem.position is None:
        return ""
    order = schedule.orders[problem.rank]
    low, high = max(0, problem.position - 4), problem.position + 4
    cells = [f"[{a}]" if low + i == problem.position else str(a) for i, a in enumerate(order[low:high])]
    return f"\n      rank {problem.rank}, from position {low}: {' '.join(cells)}"
