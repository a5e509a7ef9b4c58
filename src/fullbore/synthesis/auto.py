"""auto: the entry of the schedule that is made for the costs at hand, and the ways in which it may lie on the ranks.

The search itself is in `fullbore.synthesis.search`; it needs arrays, and is loaded when there is something to search.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.entry import Option, ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY", "NAME", "cap_of_a_run", "variants"]

NAME = "auto"


def variants(
    entry: ScheduleEntry,
    num_ranks: int,
    *,
    num_microbatches: int,
    num_chunks: int | None = None,
    options: Mapping[str, int] | None = None,
) -> tuple[Sizes, ...]:
    """The sizes to try: for auto, unless the caller says where its stages lie, one stage a rank, and two of them in a
    loop and in a V; for any other schedule the one the caller means.

    Raises:
        ScheduleError: as `ScheduleEntry.sizes`.
    """
    given = dict(options or {})
    wanted: list[tuple[int | None, dict[str, int]]] = [(num_chunks, given)]
    if entry.name == NAME:
        ways = [given] if "snake" in given else [{"snake": 1}, {"snake": 0}]
        counts = [1, 2] if num_chunks is None else [num_chunks]
        wanted = [(count, way) for count in counts for way in (ways if count > 1 else ways[-1:])]
    return tuple(
        entry.sizes(num_ranks, num_microbatches=num_microbatches, num_chunks=chunks, options=choice)
        for chunks, choice in wanted
    )


def cap_of_a_run(entry: ScheduleEntry, sizes: Sizes) -> Fraction | None:
    """Most shares of memory a rank keeps in a run that sets no cap: auto, which would take all there is, gets what 1F1B
    keeps; None: what the order comes to, whatever the costs."""
    if entry.name == NAME:
        return Fraction(sizes.num_ranks)
    return None if entry.own_cap is None else Fraction(entry.own_cap(sizes))


def _place(sizes: Sizes) -> Placement:
    place = Placement.snake if sizes.options["snake"] else Placement.loop
    return place(sizes.num_ranks, num_chunks=sizes.num_chunks)


def _check(sizes: Sizes) -> None:
    if sizes.options["snake"] > 1:
        raise ScheduleError(f"option snake of {NAME} is 0 or 1 (given {sizes.options['snake']})")


def _construct(sizes: Sizes, costs: ScheduleCosts) -> Schedule:
    from fullbore.synthesis.search import search  # what only draws or lists imports no numpy

    return search(sizes, _place(sizes), costs=costs, name=NAME).schedule


ENTRY = ScheduleEntry(
    name=NAME,
    summary="made for the costs, links and memory at hand; never slower than a published one on the same ranks",
    paper="fullbore's own search; list scheduling with justification, docs/schedules/auto.md",
    constraints="any number of ranks and microbatches, up to 150,000 forwards",
    construct=_construct,
    place=_place,
    check=_check,
    takes_chunks=True,
    options=(Option("snake", 0, "1: stages go down the ranks and up again, so that first and last share a rank"),),
    splits_backward=True,
    cost_driven=True,
    peak=lambda sizes, rank: sizes.num_microbatches * sizes.num_chunks,
    peak_is_exact=False,
)
