"""Validate: the rules a compute-only schedule must keep, each with a name and a reason.

`problems` reports every violated rule; `validate` raises at the first sight of one and prints the place:

    rank 1    1F0  [1B1]  1F1   1B0    <-- rank 1, position 1: 1B1 comes before 1F1 on rank 1

A schedule without any backward is a forward-only one, for evaluation, and legal. Linear in the number of actions:
the last rule (rank orders and data have no cycle) is one walk, `fullbore.ir.flow`.
The spec *after* lowering is another one, `fullbore.ir.program_spec`; that of a file with explicit sends and receives a
third, `fullbore.ir.explicit_spec`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise, product

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, Rank, SliceIndex, StageIndex
from fullbore.ir.action import Compute, Kind, Message
from fullbore.ir.flow import Stuck, flow, own_input
from fullbore.ir.problem import Problem, raise_problems
from fullbore.ir.schedule import Schedule

__all__ = ["Rule", "problems", "validate"]


class Rule(StrEnum):
    """The rules, in the order in which they are checked. ``reason`` says why each one stands."""

    ONE_ORDER_A_RANK = "one-order-a-rank"
    KNOWN_STAGE = "known-stage"
    KNOWN_MICROBATCH = "known-microbatch"
    KNOWN_SLICE = "known-slice"
    OWN_STAGE = "own-stage"
    ONCE = "once"
    ONE_STREAM = "one-stream"
    COMPLETE = "complete"
    WHOLE_OR_SPLIT = "whole-or-split"
    FORWARD_FIRST = "own-forward-first"
    INPUT_BEFORE_WEIGHT = "input-before-weight"
    SLICES_IN_ORDER = "slices-in-order"
    OVERLAP = "overlap"
    NO_CYCLE = "no-cycle"
    IN_FLIGHT = "in-flight"

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS = {
    Rule.ONE_ORDER_A_RANK: "every rank walks exactly one order",
    Rule.KNOWN_STAGE: "a stage that the placement lacks has no layers and no rank",
    Rule.KNOWN_MICROBATCH: "a microbatch from beyond the step has no data",
    Rule.KNOWN_SLICE: "an action names its slice exactly where sequences are cut, and one that exists",
    Rule.OWN_STAGE: "only the rank that holds a stage has its weights",
    Rule.ONCE: "an action done twice counts a microbatch twice in the gradient",
    Rule.ONE_STREAM: "a microbatch goes through the model once; on both streams it counts twice",
    Rule.COMPLETE: "an action left out loses a microbatch, and the gradient with it",
    Rule.WHOLE_OR_SPLIT: "a backward is whole (B) or split (I and W); both would count it twice",
    Rule.FORWARD_FIRST: "a backward or a recomputation needs what its own forward kept",
    Rule.INPUT_BEFORE_WEIGHT: "the weight gradient is what the backward for the input left to do",
    Rule.SLICES_IN_ORDER: "a slice attends to the ones before it, and its gradient comes from the ones behind it too",
    Rule.OVERLAP: "what may run at once is a forward and, right after it, the backward of another microbatch",
    Rule.NO_CYCLE: "ranks that wait for each other in a cycle never finish",
    Rule.IN_FLIGHT: "a rank that keeps more activations than it was given room for runs out of memory",
}

_MOST_LISTED = 1000
"""Missing actions listed one by one; more of them are one problem (a mistyped number of microbatches)."""


def validate(schedule: Schedule, *, most_in_flight: Sequence[int] | None = None) -> None:
    """Raise `InvalidSchedule` unless every rule holds. ``most_in_flight`` as in `problems`."""
    raise_problems(problems(schedule, most_in_flight=most_in_flight), schedule=schedule)


def problems(schedule: Schedule, *, most_in_flight: Sequence[int] | None = None) -> tuple[Problem, ...]:
    """Every violated rule, in the order of `Rule`. The last two are checked once the others hold.

    Args:
        most_in_flight: for each rank, how many activations of one (stage, microbatch) it may keep at once. None: any.
    """
    if len(schedule.orders) != schedule.num_ranks:
        text = f"the placement has {schedule.num_ranks} ranks, the schedule {len(schedule.orders)} orders"
        return (Problem(Rule.ONE_ORDER_A_RANK, None, None, None, text),)
    if most_in_flight is not None and len(most_in_flight) != schedule.num_ranks:
        raise ScheduleError(
            f"a bound on what is in flight has one number a rank, {schedule.num_ranks} of them "
            f"(given {len(most_in_flight)})"
        )
    found = [*_places(schedule), *_counts(schedule), *_local_order(schedule)]
    if not found:
        found.extend(_overlaps(schedule))
    if not found:
        found.extend(_cycle(schedule))
        if most_in_flight is not None:
            found.extend(_in_flight(schedule, most_in_flight))
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
            if not _known_slice(action, schedule.num_slices):
                text = f"{action} on rank {rank}: {_slices(schedule.num_slices)}"
                yield Problem(Rule.KNOWN_SLICE, *where, text)


def _known_slice(action: Compute, num_slices: int) -> bool:
    if num_slices == 1:
        return action.slice_index is None
    return action.slice_index is not None and 0 <= action.slice_index < num_slices


def _slices(num_slices: int) -> str:
    return "sequences are whole" if num_slices == 1 else f"sequences are cut into slices 0 to {num_slices - 1}"


def _counts(schedule: Schedule) -> Iterator[Problem]:
    seen: set[Compute] = set()
    for rank, order in enumerate(schedule.orders):
        for position, action in enumerate(order):
            if action in seen:
                yield Problem(Rule.ONCE, Rank(rank), position, action, f"{action} on rank {rank} is there twice")
            seen.add(action)
    forward_only = all(action.kind is Kind.FORWARD for action in seen)
    wanted = schedule.num_stages * schedule.num_microbatches * schedule.num_slices // schedule.placement.num_streams
    if schedule.num_microbatches < 1 or wanted - len(seen) > _MOST_LISTED:
        in_slices = "" if schedule.num_slices == 1 else f", {schedule.num_slices} slices"
        text = (
            f"{wanted} forwards are needed, at least 1 ({schedule.num_stages} stages, "
            f"{schedule.num_microbatches} microbatches{in_slices}), and there are {len(seen)} actions in all"
        )
        yield Problem(Rule.COMPLETE, None, None, None, text)
        return
    cuts = [None] if schedule.num_slices == 1 else list(map(SliceIndex, range(schedule.num_slices)))
    stream_of, strays = _streams(schedule, seen)
    yield from strays
    for stage, microbatch, cut in product(
        map(StageIndex, range(schedule.num_stages)), map(MicrobatchIndex, range(schedule.num_microbatches)), cuts
    ):
        if stage in stream_of[microbatch]:
            rank, forward = schedule.placement.rank_of(stage), Compute(stage, Kind.FORWARD, microbatch, cut)
            has = {kind: forward.of_kind(kind) in seen for kind in Kind}
            missing: list[Kind] = [] if has[Kind.FORWARD] else [Kind.FORWARD]
            split = has[Kind.BACKWARD_INPUT] or has[Kind.BACKWARD_WEIGHT]
            if has[Kind.BACKWARD] and split:
                text = f"stage {stage}, microbatch {microbatch} on rank {rank} has B and also I or W"
                yield Problem(Rule.WHOLE_OR_SPLIT, rank, None, forward.of_kind(Kind.BACKWARD), text)
            elif split:
                missing += [kind for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT) if not has[kind]]
            elif not has[Kind.BACKWARD] and not forward_only:
                missing.append(Kind.BACKWARD)
            for kind in missing:
                action = forward.of_kind(kind)
                yield Problem(Rule.COMPLETE, rank, None, action, f"{action} is missing on rank {rank}")


def _streams(schedule: Schedule, seen: set[Compute]) -> tuple[list[frozenset[StageIndex]], list[Problem]]:
    """The stages of the stream that each microbatch takes (the one with most of its actions), and what is beside it."""
    streams = [frozenset(stream) for stream in schedule.placement.streams]
    if len(streams) == 1:
        return streams * schedule.num_microbatches, []
    votes = Counter((action.microbatch, action.stage in streams[1]) for action in seen)
    taken = [
        streams[votes[mb, True] > votes[mb, False]] for mb in map(MicrobatchIndex, range(schedule.num_microbatches))
    ]
    strays = [
        Problem(
            Rule.ONE_STREAM,
            Rank(rank),
            position,
            action,
            f"{action} on rank {rank}: microbatch {action.microbatch} takes the other stream, over stages "
            f"{min(taken[action.microbatch])} to {max(taken[action.microbatch])}",
        )
        for rank, order in enumerate(schedule.orders)
        for position, action in enumerate(order)
        if 0 <= action.stage < schedule.num_stages
        and 0 <= action.microbatch < schedule.num_microbatches
        and action.stage not in taken[action.microbatch]
    ]
    return taken, strays


def _local_order(schedule: Schedule) -> Iterator[Problem]:
    for rank, order in enumerate(schedule.orders):
        first_at: dict[Compute, int] = {}
        for position, action in enumerate(order):
            first_at.setdefault(action, position)
        for position, action in enumerate(order):
            needed = {own_input(action, num_slices=schedule.num_slices)}
            if action.kind.makes_input_gradient:
                needed.add(action.of_kind(Kind.FORWARD))
            for before in sorted(filter(None, needed), key=str):
                if first_at.get(before, -1) <= position:
                    continue
                rule = Rule.INPUT_BEFORE_WEIGHT if action.kind is Kind.BACKWARD_WEIGHT else Rule.FORWARD_FIRST
                rule = Rule.SLICES_IN_ORDER if before.kind is action.kind else rule
                text = f"{action} comes before {before} on rank {rank}"
                yield Problem(rule, Rank(rank), position, action, text)
            if action.kind is Kind.RECOMPUTE:
                for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
                    user = action.of_kind(kind)
                    if first_at.get(user, position) < position:
                        text = f"{action} comes after {user} on rank {rank}, which needs it"
                        yield Problem(Rule.FORWARD_FIRST, Rank(rank), position, action, text)


def _overlaps(schedule: Schedule) -> Iterator[Problem]:
    after = {one: other for order in schedule.orders for one, other in pairwise(order)}
    for pair in sorted(schedule.overlaps, key=str):
        one, other = pair.forward, pair.backward
        is_pair = one.kind is Kind.FORWARD and other.kind.makes_input_gradient and one.microbatch != other.microbatch
        if not is_pair or after.get(one) != other:
            known = 0 <= one.stage < schedule.num_stages
            rank = schedule.placement.rank_of(one.stage) if known else None
            text = f"{pair} is not a forward and, right after it, the backward of another microbatch"
            yield Problem(Rule.OVERLAP, rank, None, one, text)


def _cycle(schedule: Schedule) -> Iterator[Problem]:
    together = {pair.forward: pair.backward for pair in schedule.overlaps}
    stuck = {blocked.rank: blocked for blocked in flow(schedule, together=together).stuck}
    if not stuck:
        return
    cycle = _follow(stuck, schedule)
    first = cycle[0]
    text = "; ".join(str(blocked) for blocked in cycle)
    yield Problem(Rule.NO_CYCLE, first.rank, first.position, first.action, f"{text}: none of them can ever start")


def _follow(stuck: dict[Rank, Stuck], schedule: Schedule) -> list[Stuck]:
    """From any blocked rank to the one that owes it data, until a rank repeats: that is the cycle."""
    path: list[Stuck] = []
    rank = min(stuck)
    while stuck[rank] not in path:
        path.append(stuck[rank])
        wanted = stuck[rank].waits_for
        assert isinstance(wanted, Message), "local order is checked before cycles"
        rank = schedule.placement.rank_of(wanted.stage)
    return path[path.index(stuck[rank]) :]


def _in_flight(schedule: Schedule, most: Sequence[int]) -> Iterator[Problem]:
    """On each rank the first forward that is too many. A forward without a backward (evaluation) keeps nothing."""
    for rank, (order, bound) in enumerate(zip(schedule.orders, most, strict=True)):
        freed = {action.of_kind(Kind.FORWARD) for action in order if action.kind.frees_activation}
        alive = 0
        for position, action in enumerate(order):
            if action.kind.frees_activation:
                alive -= 1
            elif action in freed:
                alive += 1
                if alive > bound:
                    text = f"{action} on rank {rank} is activation {alive} in flight, of at most {bound}"
                    yield Problem(Rule.IN_FLIGHT, Rank(rank), position, action, text)
                    break
