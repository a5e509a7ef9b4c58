"""How good `auto` is: against the bounds, against the published schedules under jitter, and how long it takes.

    python benchmarks/synthesis.py [--json] [--instances N] [--seed S] [--processes N] [--sizes P,M P,M ...]

Instances: p 4 to 16 and m from p to 4 p, uniform; each rank's forward, backward for the input and for the weights 1000,
1100 and 800, each times 0.7 to 1.3; the last rank's all times 1 to 1.5 (a heavy head); a transfer 0 to 100. Under a
memory cap of p, 1.5 p and 2 p shares `auto` chooses among one stage a rank and two in a loop or a V, as on the command
line. ``gap``: its makespan over the best proven bound for the same stages and memory; ``linear`` is the gap with one
stage a rank. ``published``: auto's makespan over that of the fastest published schedule that fits.

Then both run 20 times with jitter, each action's time varying by itself with a standard deviation of 5 %, in draws that
the search has not seen. The best published schedule is the one with the least mean. ``realised``: auto's mean over
its, the mean and the worst of all instances; ``at_least``: the share of instances where auto is at least as fast.

Instances are independent of each other and shared out among processes, one a core unless said otherwise; the answer
does not depend on how many. Seconds are those of a process's own work, and schedules are timed when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from time import perf_counter, process_time
from typing import Any

from measure import answer, machine

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.plan.made import Timing, make_for
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.compiled import compile_schedule
from fullbore.synthesis.auto import ENTRY, variants
from fullbore.synthesis.bounds import bound_of
from fullbore.synthesis.instance import Instance
from fullbore.synthesis.replays import Replays, exact_makespan
from fullbore.synthesis.search import Found, choose, published_for, search
from fullbore.timeline.scale import TimeScale

_CAPS = {"p": Fraction(1), "1.5 p": Fraction(3, 2), "2 p": Fraction(2)}
_REPLAYS = 20
_UNSEEN = 7
"""The seed of the draws: not the search's."""

_STATES = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality and speed of made schedules.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="instances at once; one a core")
    parser.add_argument("--sizes", nargs="*", default=["16,128", "64,512"], help="p,m to be timed")
    options = parser.parse_args()
    random = Random(options.seed)
    works = [Work.draw(random) for _ in range(options.instances)]
    outcomes = _outcomes(works, processes=options.processes)
    tables = {
        "gap to the bound, and against the best published schedule": [
            _quality(name, [outcomes[place, name] for place in range(len(works))]) for name in _CAPS if works
        ],
        "seconds to make one": [_speed(*map(int, size.split(",")), random) for size in options.sizes],
    }
    if options.json:
        print(json.dumps({"machine": machine(), "tables": tables}))
        return
    for title, rows in tables.items():
        if rows:
            answer(rows, title=title, as_json=False)


@dataclass(frozen=True, slots=True)
class Work:
    """One instance. Times are even, so that half a share is whole."""

    num_ranks: int
    num_microbatches: int
    shares: tuple[StageCost, ...]
    """One a rank."""

    transfer: int

    @classmethod
    def draw(cls, random: Random, *, num_ranks: int | None = None, num_microbatches: int | None = None) -> Work:
        p = random.randint(4, 16) if num_ranks is None else num_ranks
        m = random.randint(p, 4 * p) if num_microbatches is None else num_microbatches
        heavy = [1.0] * (p - 1) + [random.uniform(1, 1.5)]
        shares = tuple(
            StageCost(*(2 * round(time / 2 * random.uniform(0.7, 1.3) * factor) for time in (1000, 1100, 800)))
            for factor in heavy
        )
        return cls(p, m, shares, round(random.uniform(0, 100)))

    def variants(self) -> tuple[Sizes, ...]:
        return variants(ENTRY, self.num_ranks, num_microbatches=self.num_microbatches)

    def timing(self, sizes: Sizes, placement: Placement) -> Timing:
        """A chunk takes its part of the rank's share."""
        v = sizes.num_chunks
        stages = tuple(
            StageCost(share.forward // v, share.backward_input // v, share.backward_weight // v)
            for share in (self.shares[rank] for rank in placement.ranks)
        )
        return Timing(stages, (Link(self.transfer),) * (placement.num_stages - 1), TimeScale())

    def costs(self, sizes: Sizes, cap: Fraction) -> ScheduleCosts:
        placement = ENTRY.place(sizes)
        timing = self.timing(sizes, placement)
        return ScheduleCosts.of(placement, stages=timing.stages, links=timing.links, memory_cap=cap)

    def published(self, cap: Fraction) -> list[tuple[Schedule, ScheduleCosts]]:
        """Those that fit under the cap, on every placement that auto may choose, with their costs."""
        found = []
        for sizes in self.variants():
            placement, costs = ENTRY.place(sizes), self.costs(sizes, cap)
            instance = Instance.of(placement, num_microbatches=self.num_microbatches, costs=costs)
            schedules = published_for(sizes, placement, costs=costs)
            found += [(schedule, costs) for schedule in schedules if instance.fits(schedule)]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one instance under one cap: ratios minus one, and seconds of this process."""

    gap: float
    linear_gap: float
    published: float
    realised: float
    seconds: float


def _outcomes(works: Sequence[Work], *, processes: int) -> dict[tuple[int, str], Outcome]:
    """By instance and cap; the largest instances first, so that no process ends long after the others."""
    tasks = [(place, name) for place in range(len(works)) for name in _CAPS]
    tasks.sort(key=lambda task: -works[task[0]].num_ranks * works[task[0]].num_microbatches)
    start, found = perf_counter(), {}
    with ProcessPoolExecutor(max_workers=processes) as pool:
        waiting = {pool.submit(_outcome, works[place], name): (place, name) for place, name in tasks}
        for done in as_completed(waiting):
            found[waiting[done]] = done.result()
            if len(found) % max(1, len(tasks) // 20) == 0:
                minutes = (perf_counter() - start) / 60
                print(f"{len(found)} of {len(tasks)} in {minutes:.1f} min", file=sys.stderr, flush=True)
    return found


def _outcome(work: Work, name: str) -> Outcome:
    cap = Fraction(int(work.num_ranks * _CAPS[name]))
    start = process_time()
    costs = [work.costs(sizes, cap) for sizes in work.variants()]
    found = [
        search(sizes, ENTRY.place(sizes), costs=its, name=ENTRY.name)
        for sizes, its in zip(work.variants(), costs, strict=True)
    ]
    place = choose(found, per_unit=[1] * len(found))
    seconds = process_time() - start
    linear_gap = _gap(found[0], costs[0])
    known = [(_exact(*one), _mean(*one)) for one in work.published(cap)]
    return Outcome(
        gap=_gap(found[place], costs[place]) if place else linear_gap,
        linear_gap=linear_gap,
        published=found[place].makespan / min(time for time, _ in known) - 1,
        realised=_mean(found[place].schedule, costs[place]) / min(mean for _, mean in known) - 1,
        seconds=seconds,
    )


def _quality(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    row: dict[str, Any] = {"cap": name, "instances": len(outcomes)}
    for column, ratios in (
        ("gap", [one.gap for one in outcomes]),
        ("linear", [one.linear_gap for one in outcomes]),
        ("published", [one.published for one in outcomes]),
        ("realised", [one.realised for one in outcomes]),
    ):
        row |= {f"{column}_mean": _percent(statistics.mean(ratios)), f"{column}_worst": _percent(max(ratios))}
    row["at_least"] = f"{sum(one.realised <= 0 for one in outcomes) / len(outcomes):.1%}"
    row["seconds_mean"] = statistics.mean(one.seconds for one in outcomes)
    return row


def _gap(found: Found, costs: ScheduleCosts) -> float:
    return bound_of(found.schedule, costs=costs, makespan=found.makespan, states=_STATES).gap(found.makespan)


def _exact(schedule: Schedule, costs: ScheduleCosts) -> int:
    return exact_makespan(compile_schedule(schedule), costs=costs)


def _mean(schedule: Schedule, costs: ScheduleCosts) -> float:
    replays = Replays(
        num_stages=schedule.num_stages, num_microbatches=schedule.num_microbatches, count=_REPLAYS, seed=_UNSEEN
    )
    return float(replays.makespans(compile_schedule(schedule), costs=costs).mean())


def _speed(p: int, m: int, random: Random) -> dict[str, Any]:
    work = Work.draw(random, num_ranks=p, num_microbatches=m)
    row: dict[str, Any] = {"p": p, "m": m}
    for column, tried in (("one_stage_a_rank", work.variants()[:1]), ("all_placements", work.variants())):
        start = process_time()
        made = make_for(ENTRY, tried, timing=work.timing, memory_cap=Fraction(p))
        row[column] = process_time() - start
        makespan = _exact(made.schedule, made.costs)
        row[f"{column}_gap"] = _percent(bound_of(made.schedule, costs=made.costs, makespan=makespan).gap(makespan))
    return row


def _percent(ratio: float) -> str:
    return f"{ratio:+.2%}"


if __name__ == "__main__":
    main()
