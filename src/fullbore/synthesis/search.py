"""Search: an order made for the costs at hand, never slower than any published schedule for the same stages and memory.

1. Every registered schedule that exists for these sizes and lies on the ranks in the same way is built for the costs;
   those that keep more than the memory cap are dropped.
2. A grid of policies gives orders by list scheduling (`fullbore.synthesis.list_scheduling`).
3. The best of both are justified (`fullbore.synthesis.justification`), which closes gaps.
4. Of the orders that are at most as slow as the best published one, and within a hundredth of the best of all, the one
   that is fastest *on average over replays with jitter* is taken (`fullbore.synthesis.replays`): times are never exact.

Nothing is measured in seconds: the grid is cut off by the number of actions listed, so the same input gives the same
order on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.registry import REGISTRY
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.compiled import CompiledSchedule, compile_schedule
from fullbore.synthesis.auto import NAME
from fullbore.synthesis.instance import Instance, Orders
from fullbore.synthesis.justification import justified
from fullbore.synthesis.list_scheduling import list_schedule, policies
from fullbore.synthesis.replays import Replays, exact_makespan

__all__ = ["published_for", "synthesize"]

_MOST_FORWARDS = 150_000
"""Beyond it a search takes minutes."""

_LISTED = 400_000
"""Actions of all orders that are tried, but at least `_LEAST_POLICIES` of them."""

_LEAST_POLICIES = 6
_JUSTIFIED = 60_000
"""Actions of all orders that are justified, but at least one and at most `_MOST_JUSTIFIED`."""

_MOST_JUSTIFIED = 8
_SHORTLIST = 6
_NEAR = 0.01
_REPLAYS = 16
_SEED = 20241


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An order with what it takes exactly."""

    makespan: int
    schedule: Schedule
    compiled: CompiledSchedule


def synthesize(
    placement: Placement, *, num_microbatches: int, costs: ScheduleCosts, published: Iterable[Schedule] = ()
) -> Schedule:
    """The schedule described above, named auto.

    Args:
        published: the schedules it must not be slower than; those above the memory cap are left out.

    Raises:
        ScheduleError: a bidirectional placement, a memory cap below one share, or sizes beyond what is searched.
    """
    forwards = num_microbatches * placement.num_stages
    if forwards > _MOST_FORWARDS:
        raise ScheduleError(
            f"auto searches among orders of up to {_MOST_FORWARDS:,} forwards (these sizes have {forwards:,}); "
            "use fewer microbatches or a published schedule"
        )
    instance = Instance.of(placement, num_microbatches=num_microbatches, costs=costs)
    known = [_candidate(schedule, costs) for schedule in published if instance.fits(schedule)]
    known.sort(key=lambda one: one.makespan)
    found = _found(instance, [one.schedule for one in known])
    limit = known[0].makespan if known else found[0][0]
    near = min(limit, found[0][0]) * (1 + _NEAR)
    shortlist = [one for one in known if one.makespan <= min(limit, near)][:_SHORTLIST]
    for makespan, orders in found[:_SHORTLIST]:
        if makespan <= min(limit, near):
            shortlist.append(_candidate(instance.schedule(orders, name=NAME), costs))
    best = _most_robust(shortlist, costs)
    return Schedule(NAME, best.placement, best.num_microbatches, best.orders)


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


def _found(instance: Instance, published: list[Schedule]) -> list[tuple[int, Orders]]:
    """Different orders, fastest first."""
    grid = policies(chunked=instance.num_stages > instance.num_ranks)
    tried = grid[: max(_LEAST_POLICIES, _LISTED // instance.num_actions)]
    makespans: dict[Orders, int] = {}
    for policy in tried:
        makespan, orders = list_schedule(instance, policy)
        makespans.setdefault(orders, makespan)
    most = min(_MOST_JUSTIFIED, max(1, _JUSTIFIED // instance.num_actions))
    starts = sorted(makespans, key=lambda orders: makespans[orders])[:most]
    codes = [instance.orders_of(schedule) for schedule in published]
    starts += [orders for orders in codes if orders is not None][: (most + 1) // 2]
    for start in starts:
        makespan, orders = justified(instance, start)
        makespans.setdefault(orders, makespan)
    return sorted(((makespan, orders) for orders, makespan in makespans.items()), key=lambda one: one[0])


def _candidate(schedule: Schedule, costs: ScheduleCosts) -> _Candidate:
    compiled = compile_schedule(schedule)
    return _Candidate(exact_makespan(compiled, costs=costs), schedule, compiled)


def _most_robust(shortlist: list[_Candidate], costs: ScheduleCosts) -> Schedule:
    """Fastest on average over the replays; of equal ones the first."""
    if len(shortlist) == 1:
        return shortlist[0].schedule
    first = shortlist[0].schedule
    replays = Replays(num_stages=first.num_stages, num_microbatches=first.num_microbatches, count=_REPLAYS, seed=_SEED)
    return min(shortlist, key=lambda one: float(replays.makespans(one.compiled, costs=costs).mean())).schedule
