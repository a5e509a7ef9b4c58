"""Instance: what an order is to be found for: stages on ranks, microbatches, times, and room for activations.

Every microbatch asks the same of a stage, so nothing is lost by running forwards, backwards for the input and backwards
for the weights of each stage in the order of the microbatches: sorting the start times of any schedule, kind by kind,
keeps every precedence, every gap and every count of activations. An order of a rank is therefore a sequence of *codes*,
3 * stage + kind with 0 forward, 1 backward for the input, 2 backward for the weights; the n-th occurrence of a code is
microbatch n. Searching works on codes, in plain lists of integers; only the result becomes a `Schedule`.

Memory is counted in whole units: a forward takes ``unit`` of them, the backward for the input gives ``early`` back, the
one for the weights the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts

__all__ = ["BACKWARD_INPUT", "BACKWARD_WEIGHT", "FORWARD", "Instance", "Orders", "WaitCycle", "last_ends"]

FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(3)

_KINDS = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)

Orders = tuple[tuple[int, ...], ...]
"""[rank] the codes in the order in which the rank runs them."""


@dataclass(frozen=True)
class Instance:
    """One stream of stages. Times are integers of one unit."""

    placement: Placement
    num_microbatches: int
    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    """[stage] what one microbatch takes."""

    delays: tuple[int, ...]
    """[boundary] how long a message is under way."""

    unit: int
    early: int
    caps: tuple[int, ...]
    """[rank] most units it may keep."""

    @classmethod
    def of(cls, placement: Placement, *, num_microbatches: int, costs: ScheduleCosts) -> Instance:
        """Backwards are split.

        Raises:
            ScheduleError: two streams, or a memory cap that not even one microbatch fits under.
        """
        if placement.num_streams != 1:
            raise ScheduleError("an order is made for one stream of stages, not for a bidirectional placement")
        unit = costs.input_backward_frees.denominator
        caps = []
        for rank in map(Rank, range(placement.num_ranks)):
            chunks = len(placement.stages_of(rank))
            most = num_microbatches * chunks * unit
            if costs.memory_cap is not None:
                cap = costs.memory_cap[rank]
                if cap < 1:
                    raise ScheduleError(
                        f"one microbatch keeps 1 share on every rank (the memory cap of rank {rank} is "
                        f"{float(cap):g}); allow at least 1"
                    )
                most = min(most, math.floor(cap * chunks * unit))
            caps.append(most)
        return cls(
            placement=placement,
            num_microbatches=num_microbatches,
            forward=tuple(cost.forward for cost in costs.stages),
            backward_input=tuple(cost.backward_input for cost in costs.stages),
            backward_weight=tuple(cost.backward_weight for cost in costs.stages),
            delays=costs.delays,
            unit=unit,
            early=costs.input_backward_frees.numerator,
            caps=tuple(caps),
        )

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_actions(self) -> int:
        return 3 * self.num_stages * self.num_microbatches

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """[stage] its rank."""
        return tuple(int(rank) for rank in self.placement.ranks)

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """[rank] its stages, in model order."""
        return tuple(tuple(map(int, self.placement.stages_of(Rank(rank)))) for rank in range(self.num_ranks))

    @cached_property
    def durations(self) -> tuple[int, ...]:
        """[code] what it takes."""
        triples = zip(self.forward, self.backward_input, self.backward_weight, strict=True)
        return tuple(time for triple in triples for time in triple)

    @cached_property
    def sources(self) -> tuple[tuple[int | None, int], ...]:
        """[code] the code whose end it waits for, of the same microbatch, and how long that takes to arrive."""
        last = self.num_stages - 1
        found: list[tuple[int | None, int]] = []
        for stage in range(self.num_stages):
            forward = 3 * stage
            found.append((forward - 3, self.delays[stage - 1]) if stage else (None, 0))
            found.append((forward + 4, self.delays[stage]) if stage < last else (forward, 0))
            found.append((forward + 1, 0))
        return tuple(found)

    @cached_property
    def users(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """[code] the codes that wait for its end, and how long that takes to arrive: `sources` the other way round."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.sources]
        for code, (source, delay) in enumerate(self.sources):
            if source is not None:
                found[source].append((code, delay))
        return tuple(map(tuple, found))

    @cached_property
    def ranks_told(self) -> tuple[int | None, ...]:
        """[code] the rank of another stage that waits for its end."""
        return tuple(
            next((self.ranks[user // 3] for user, _ in users if user // 3 != code // 3), None)
            for code, users in enumerate(self.users)
        )

    @cached_property
    def round_trips(self) -> tuple[int, ...]:
        """[stage] from the end of its forward to the start of its backward for the input, at the least."""
        found = [0] * self.num_stages
        for stage in range(self.num_stages - 2, -1, -1):
            below = stage + 1
            found[stage] = 2 * self.delays[stage] + self.forward[below] + found[below] + self.backward_input[below]
        return tuple(found)

    def work(self, rank: int) -> int:
        """What one microbatch takes on the whole rank."""
        return sum(sum(self.durations[3 * stage : 3 * stage + 3]) for stage in self.stages[rank])

    def schedule(self, orders: Orders, *, name: str) -> Schedule:
        """The same as a schedule."""
        actions = [
            [Compute(StageIndex(stage), kind, MicrobatchIndex(index)) for index in range(self.num_microbatches)]
            for stage in range(self.num_stages)
            for kind in _KINDS
        ]
        done = [0] * len(actions)
        found: list[tuple[Compute, ...]] = []
        for order in orders:
            mine = []
            for code in order:
                mine.append(actions[code][done[code]])
                done[code] += 1
            found.append(tuple(mine))
        return Schedule(name, self.placement, self.num_microbatches, tuple(found))

    def orders_of(self, schedule: Schedule) -> Orders | None:
        """The codes of a schedule of the same sizes, a whole backward as its two parts; None unless it runs every kind
        in the order of the microbatches and nothing else."""
        code_of: dict[Kind, tuple[int, ...]] = {kind: (place,) for place, kind in enumerate(_KINDS)}
        code_of[Kind.BACKWARD] = (BACKWARD_INPUT, BACKWARD_WEIGHT)
        done = [0] * (3 * self.num_stages)
        found = []
        for order in schedule.orders:
            codes = []
            for action in order:
                if action.kind not in code_of:
                    return None
                for kind in code_of[action.kind]:
                    code = 3 * action.stage + kind
                    if action.microbatch != done[code]:
                        return None
                    done[code] += 1
                    codes.append(code)
            found.append(tuple(codes))
        return tuple(found)

    def fits(self, schedule: Schedule) -> bool:
        """Does no rank keep more than its cap? Whole backwards give everything back at their end."""
        gives = {
            Kind.FORWARD: -self.unit,
            Kind.BACKWARD: self.unit,
            Kind.BACKWARD_INPUT: self.early,
            Kind.BACKWARD_WEIGHT: self.unit - self.early,
        }
        return self._stays_within([gives.get(action.kind, 0) for action in order] for order in schedule.orders)

    def fit(self, orders: Orders) -> bool:
        """The same for codes."""
        gives = (-self.unit, self.early, self.unit - self.early)
        return self._stays_within([gives[code % 3] for code in order] for order in orders)

    def _stays_within(self, given: Iterable[Sequence[int]]) -> bool:
        """Of each rank what its actions give back, less what they take."""
        return all(min(accumulate(order, initial=cap)) >= 0 for order, cap in zip(given, self.caps, strict=True))


class WaitCycle(Exception):
    """Orders that wait for each other in a cycle."""


def last_ends(instance: Instance, orders: Sequence[Sequence[int]]) -> list[list[int]]:
    """[code, microbatch] when everything ends if every action starts as early as its rank's order and its input let it.

    Raises:
        WaitCycle: the orders wait for each other.
    """
    durations = instance.durations
    ends: list[list[int]] = [[] for _ in durations]
    inputs = [
        (None if source is None else ends[source], delay, told)
        for (source, delay), told in zip(instance.sources, instance.ranks_told, strict=True)
    ]
    place, free = [0] * len(orders), [0] * len(orders)
    awake = list(range(len(orders)))
    while awake:
        rank = awake.pop()
        order, now, position = orders[rank], free[rank], place[rank]
        woken = set()
        while position < len(order):
            code = order[position]
            mine = ends[code]
            source, delay, told = inputs[code]
            if source is not None:
                index = len(mine)
                if len(source) <= index:
                    break
                arrival = source[index] + delay
                if arrival > now:
                    now = arrival
            now += durations[code]
            mine.append(now)
            position += 1
            if told is not None:
                woken.add(told)
        place[rank], free[rank] = position, now
        awake.extend(woken - {rank})
    if any(position < len(order) for position, order in zip(place, orders, strict=True)):
        raise WaitCycle
    return ends
