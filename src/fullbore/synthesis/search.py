"""Search: an order made for the costs at hand, never slower than any published schedule for the same stages and memory.

1. A grid of policies gives orders by list scheduling (`fullbore.synthesis.list_scheduling`).
2. Every registered schedule that runs, exists for these sizes and lies on the ranks in the same way is built for the
   costs; those that keep more than the memory cap are dropped.
3. The best of both are justified (`fullbore.synthesis.justification`), which closes gaps; if a list meets a lower bound
   already, only published ones are, for the next step.
4. Of the orders that are at most as slow as the best published one, and within half a percent of the best of all, the
   one that is fastest *on average over replays with jitter* is taken (`fullbore.synthesis.replays`): times are never
   exact.

Nothing is measured in seconds: the grid is cut off by the number of actions listed, so the same input gives the same
order on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.registry import REGISTRY
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.compiled import CompiledSchedule, compile_schedule
from fullbore.synthesis.bounds import simple_bound
from fullbore.synthesis.instance import Instance, Orders
from fullbore.synthesis.justification import justified
from fullbore.synthesis.list_scheduling import TooLate, list_schedule, policies
from fullbore.synthesis.replays import Replays, exact_makespan, require_replayable

__all__ = ["Found", "choose", "published_for", "search"]

_MOST_FORWARDS = 150_000
"""Beyond it a search takes minutes."""

_LISTED = 200_000
"""Actions of all orders that are tried, but at least `_LEAST_POLICIES` of them."""

_LEAST_POLICIES = 6
_MOST_POLICIES = 120
_JUSTIFIED = 36_000
"""Actions of all orders that are justified, but at least one order and at most `_MOST_JUSTIFIED`."""

_MOST_JUSTIFIED = 6
_SHORTLIST = 6
_NEAR = Fraction(1, 200)
_REPLAYS = 24
_SEED = 20241


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found. Times in the unit of the costs."""

    schedule: Schedule
    makespan: int
    """If everything takes as long as planned."""

    jittered: float
    """On average over the replays."""

    limit: int | None
    """No published schedule on this placement that fits is faster than this; None: there is none."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    makespan: int
    schedule: Schedule
    compiled: CompiledSchedule


def search(sizes: Sizes, placement: Placement, *, costs: ScheduleCosts, name: str) -> Found:
    """The schedule described above, under this name.

    Raises:
        CostsError: times that 64-bit integers do not hold.
        ScheduleError: a bidirectional placement, a memory cap below one share, or sizes beyond what is searched.
    """
    forwards = sizes.num_microbatches * placement.num_stages
    if forwards > _MOST_FORWARDS:
        raise ScheduleError(
            f"auto searches among orders of up to {_MOST_FORWARDS:,} forwards (these sizes have {forwards:,}); "
            "use fewer microbatches or a published schedule"
        )
    instance = Instance.of(placement, num_microbatches=sizes.num_microbatches, costs=costs)
    require_replayable(instance.num_microbatches * (sum(instance.durations) + 2 * sum(instance.delays)))
    bound = simple_bound(instance).makespan
    listed = _listed(instance, bound)
    built = published_for(sizes, placement, costs=costs)
    published = [_candidate(schedule, costs) for schedule in built if instance.fits(schedule)]
    published.sort(key=lambda one: one.makespan)
    limit = published[0].makespan if published else None
    _justify(instance, listed, [one.schedule for one in published], lists_too=min(listed.values()) > bound)
    best = min([*listed.values(), *(one.makespan for one in published)])
    near = best * (1 + _NEAR) if limit is None else min(best * (1 + _NEAR), Fraction(limit))
    shortlist = [one for one in published if one.makespan <= near][:_SHORTLIST]
    ranked = sorted(((makespan, orders) for orders, makespan in listed.items()), key=lambda one: one[0])
    for makespan, orders in ranked[:_SHORTLIST]:
        if makespan <= near:
            shortlist.append(_candidate(instance.schedule(orders, name=name), costs))
    return _most_robust(shortlist, costs=costs, name=name, limit=limit)


def choose(found: Sequence[Found], *, per_unit: Sequence[int]) -> int:
    """Which of several searches, over other placements of the same work, has the answer: by the rule within one.

    Args:
        per_unit: ticks a unit of each, so that they can be compared.
    """
    exact = [Fraction(one.makespan, unit) for one, unit in zip(found, per_unit, strict=True)]
    limits = [Fraction(one.limit, unit) for one, unit in zip(found, per_unit, strict=True) if one.limit is not None]
    near = min([*limits, min(exact) * (1 + _NEAR)])
    open_to_choice = [place for place, makespan in enumerate(exact) if makespan <= near]
    return min(open_to_choice, key=lambda place: found[place].jittered / per_unit[place])


def published_for(sizes: Sizes, placement: Placement, *, costs: ScheduleCosts) -> tuple[Schedule, ...]:
    """Every registered schedule that runs, exists for these sizes and has its stages on the same ranks."""
    found = []
    for entry in REGISTRY.values():
        if not entry.runnable:
            continue
        try:
            its = entry.sizes(sizes.num_ranks, num_microbatches=sizes.num_microbatches, num_chunks=sizes.num_chunks)
            if entry.place(its) == placement:
                found.append(entry.make(its, costs))
        except ScheduleError:
            continue  # not for these sizes, or not under this cap
    return tuple(found)


def _listed(instance: Instance, bound: int) -> dict[Orders, int]:
    """Different orders with their makespans. Those that cannot be among the `_SHORTLIST` best are not finished."""
    grid = policies(chunked=instance.num_stages > instance.num_ranks)
    tried = grid[: min(_MOST_POLICIES, max(_LEAST_POLICIES, _LISTED // instance.num_actions))]
    found: dict[Orders, int] = {}
    for policy in tried:
        worst = None if len(found) < _SHORTLIST else sorted(found.values())[_SHORTLIST - 1]
        try:
            makespan, orders = list_schedule(instance, policy, at_most=worst)
        except TooLate:
            continue
        found.setdefault(orders, makespan)
        if makespan == bound and sum(one == bound for one in found.values()) == _SHORTLIST:
            break  # nothing is faster, and there is enough to choose from
    return found


def _justify(instance: Instance, listed: dict[Orders, int], published: Iterable[Schedule], *, lists_too: bool) -> None:
    """Add what the best of both become."""
    most = min(_MOST_JUSTIFIED, max(1, _JUSTIFIED // instance.num_actions))
    starts = sorted(listed, key=lambda orders: listed[orders])[:most] if lists_too else []
    codes = [instance.orders_of(schedule) for schedule in published]
    starts += [orders for orders in codes if orders is not None][: (most + 1) // 2]
    for start in starts:
        makespan, orders = justified(instance, start)
        listed.setdefault(orders, makespan)


def _candidate(schedule: Schedule, costs: ScheduleCosts) -> _Candidate:
    compiled = compile_schedule(schedule)
    return _Candidate(exact_makespan(compiled, costs=costs), schedule, compiled)


def _most_robust(shortlist: Sequence[_Candidate], *, costs: ScheduleCosts, name: str, limit: int | None) -> Found:
    """Fastest on average over the replays; of equal ones the first."""
    first = shortlist[0].schedule
    replays = Replays(num_stages=first.num_stages, num_microbatches=first.num_microbatches, count=_REPLAYS, seed=_SEED)
    means = [float(replays.makespans(one.compiled, costs=costs).mean()) for one in shortlist]
    place = means.index(min(means))
    best = shortlist[place]
    schedule = Schedule(name, first.placement, first.num_microbatches, best.schedule.orders)
    return Found(schedule, best.makespan, means[place], limit)
