"""A schedule made for the costs at hand: what `schedule show`, `compare` and `export` have in common.

Costs are given for a placement, and an entry says which placement its sizes have; so for each of the sizes to try, the
costs are worked out first, then the schedule is made for them. Where there are several (auto, which may put its stages
in more than one way), the fastest is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.costs.unit import parse_unit_costs
from fullbore.errors import CostsError, ScheduleError
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import read_computed
from fullbore.ir.validate import validate
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes
from fullbore.synthesis.bounds import Bound, best_bound
from fullbore.synthesis.instance import Instance
from fullbore.synthesis.optimal import solve
from fullbore.timeline.scale import TimeScale

__all__ = ["Made", "Solved", "Timing", "make_for", "read_for", "solved", "unit_timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Stage times and links of one placement, in ticks or nanoseconds."""

    stages: tuple[StageCost, ...]
    links: tuple[Link, ...]
    scale: TimeScale


@dataclass(frozen=True, slots=True)
class Made:
    """A schedule with what it was made for."""

    schedule: Schedule
    timing: Timing
    memory_cap: Fraction | None
    """In shares. Given to the schedule only if its order depends on costs; the others are as they are."""

    input_backward_frees: Fraction = Fraction(0)
    """Part of an activation that the backward for the input already frees."""

    @property
    def costs(self) -> ScheduleCosts:
        """Under the cap, whether the schedule keeps to it or not."""
        return ScheduleCosts.of(
            self.schedule.placement,
            stages=self.timing.stages,
            links=self.timing.links,
            memory_cap=self.memory_cap,
            input_backward_frees=self.input_backward_frees,
        )

    @property
    def makespan(self) -> int:
        """In ticks."""
        from fullbore.simulate.compiled import compile_schedule  # a single schedule is drawn without numpy
        from fullbore.synthesis.replays import exact_makespan

        return exact_makespan(compile_schedule(self.schedule), costs=self.costs)


def make_for(
    entry: ScheduleEntry,
    tried: Sequence[Sizes],
    *,
    timing: Callable[[Sizes, Placement], Timing],
    memory_cap: Fraction | None = None,
    input_backward_frees: Fraction = Fraction(0),
) -> Made:
    """The best of the sizes tried, as `fullbore.synthesis.search.choose` has it; what the costs do not fit is left out.

    Raises:
        CostsError: the costs fit none of them.
        ScheduleError: none fits under the cap.
    """
    if len(tried) > 1:
        return _best_placed(
            entry, tried, timing=timing, memory_cap=memory_cap, input_backward_frees=input_backward_frees
        )
    placement = entry.place(tried[0])
    times = timing(tried[0], placement)
    costs = ScheduleCosts.of(
        placement,
        stages=times.stages,
        links=times.links,
        memory_cap=memory_cap if entry.cost_driven else None,
        input_backward_frees=input_backward_frees,
    )
    return Made(entry.make(tried[0], costs), times, memory_cap, input_backward_frees)


def read_for(
    path: Path,
    *,
    timing: Callable[[Sizes, Placement], Timing],
    memory_cap: Fraction | None = None,
    input_backward_frees: Fraction = Fraction(0),
) -> Made:
    """What a schedule file holds, with costs for its placement. It is as it is, whatever the costs.

    Raises:
        CostsError: the costs do not fit.
        InvalidSchedule: it breaks a rule of schedules.
        ScheduleError: it cannot be read, or has no costs by rank: ranks hold different numbers of stages.
    """
    schedule = read_computed(path)
    validate(schedule)
    held = Counter(schedule.placement.ranks)
    if len(set(held.values())) > 1:
        counts = ", ".join(str(held[rank]) for rank in sorted(held))
        raise ScheduleError(
            f"{path} has {counts} stages on its ranks, and costs are those of a rank's share of the model, which "
            "equally many stages make up; `fullbore schedule check` takes it as it is"
        )
    sizes = Sizes(
        num_ranks=schedule.num_ranks,
        num_microbatches=schedule.num_microbatches,
        num_chunks=schedule.num_stages // schedule.num_ranks,
        options={"slices": schedule.num_slices},
    )
    return Made(schedule, timing(sizes, schedule.placement), memory_cap, input_backward_frees)


def _best_placed(
    entry: ScheduleEntry,
    tried: Sequence[Sizes],
    *,
    timing: Callable[[Sizes, Placement], Timing],
    memory_cap: Fraction | None,
    input_backward_frees: Fraction,
) -> Made:
    """Only auto has several placements to choose among."""
    from fullbore.synthesis.search import Found, choose, search  # a single schedule is drawn without numpy

    found: list[Found] = []
    timings: list[Timing] = []
    refusal: CostsError | ScheduleError | None = None
    for sizes in tried:
        placement = entry.place(sizes)
        try:
            times = timing(sizes, placement)
            costs = ScheduleCosts.of(
                placement,
                stages=times.stages,
                links=times.links,
                memory_cap=memory_cap,
                input_backward_frees=input_backward_frees,
            )
            found.append(search(sizes, placement, costs=costs, name=entry.name))
        except (CostsError, ScheduleError) as error:
            refusal = refusal or error
            continue
        timings.append(times)
    if not found:
        assert refusal is not None, "there is always something to try"
        raise refusal
    place = choose(found, per_unit=[times.scale.per_unit for times in timings])
    return Made(found[place].schedule, timings[place], memory_cap, input_backward_frees)


@dataclass(frozen=True, slots=True)
class Solved:
    """A schedule after the solver had its time, and what the solver has proven."""

    made: Made
    bound: Bound


def solved(made: Made, *, seconds: float) -> Solved:
    """Let the solver improve what auto has made, or prove that nothing is better. Raises as `solve`."""
    schedule = made.schedule
    instance = Instance.of(schedule.placement, num_microbatches=schedule.num_microbatches, costs=made.costs)
    orders = instance.orders_of(schedule)
    assert orders is not None, "auto runs every kind in the order of the microbatches"
    known = made.makespan
    bound = best_bound(instance, at_most=known)
    proof = solve(instance, orders=orders, lower_bound=bound.makespan, seconds=seconds)
    if proof.makespan < known:
        made = replace(made, schedule=instance.schedule(proof.orders, name=schedule.name))
    return Solved(made, bound if proof.lower_bound <= bound.makespan else Bound(proof.lower_bound, "solver"))


def unit_timing(*, cost: str, comm: str) -> Callable[[Sizes, Placement], Timing]:
    """Of the command line's unit-free costs (`fullbore.costs.unit`)."""

    def timing(sizes: Sizes, placement: Placement) -> Timing:
        unit = parse_unit_costs(
            cost,
            num_ranks=sizes.num_ranks,
            num_chunks=sizes.num_chunks,
            num_streams=placement.num_streams,
            num_slices=sizes.num_slices,
            comm=comm,
        )
        return Timing(unit.of(placement), unit.links, TimeScale(unit.scale))

    return timing
