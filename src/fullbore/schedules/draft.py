"""Draft: the orders of a schedule while it is being made for given costs, with the times and the memory they lead to.

Cost-driven schedules put one action after another onto ranks and look at what comes of it: when a rank is free, when
the next input arrives there, how long the rank has idled, what it keeps. Backwards are split. The microbatches of one
stage come in order, per kind; weight gradients of a rank wait in one queue, first in, first out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts

__all__ = ["DeadEnd", "Draft"]


_Planned = tuple[StageIndex, Kind, int]
"""Stage, kind and microbatch of an action. Most drafts are thrown away, so only the last becomes a schedule."""


class DeadEnd(Exception):
    """A heuristic put an action whose input is not there, or for which there is no room: another one must do."""


class Draft:
    """Orders, times and memory so far. Times are in the unit of the costs; memory is in ``activation`` units each."""

    def __init__(
        self,
        name: str,
        placement: Placement,
        costs: ScheduleCosts,
        *,
        num_microbatches: int,
        shares: Sequence[Fraction],
    ) -> None:
        """``shares``: most that each rank may keep, 1 = one microbatch on all of its stages."""
        self._name, self.placement, self._costs = name, placement, costs
        self.num_microbatches = num_microbatches
        num_ranks, num_stages = placement.num_ranks, placement.num_stages
        self.activation = costs.input_backward_frees.denominator
        """One activation, in the unit in which memory is counted."""

        self._freed_by_input = costs.input_backward_frees.numerator
        self.freed_by_weight = self.activation - self._freed_by_input
        chunks = num_stages // num_ranks
        self.room = [int(share * chunks * self.activation) for share in shares]
        """What each rank may still keep."""

        if min(self.room) < chunks * self.activation:
            raise ScheduleError(
                f"{name} needs room for the activations of one microbatch on every rank "
                f"(memory_cap={float(min(shares)):g} shares); give at least 1"
            )
        self._orders: list[list[_Planned]] = [[] for _ in range(num_ranks)]
        self.free_at = [0] * num_ranks
        self.idle = [0] * num_ranks
        """Of each rank, since its first action."""

        self._most_idle = 0
        self.waiting: list[deque[_Planned]] = [deque() for _ in range(num_ranks)]
        """The weight gradients that each rank still has to do."""

        self.forwards = [0] * num_stages
        self.inputs = [0] * num_stages
        """How many forwards and input gradients each stage has put: also the next microbatch."""

        self._times = {
            kind: [cost.of(kind) for cost in costs.stages]
            for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        }
        self._arrived: dict[Kind, list[list[int]]] = {
            kind: [[] for _ in range(num_stages)] for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT)
        }
        """By kind, stage and microbatch: when the input is there."""

        for stages in placement.streams:
            self._arrived[Kind.FORWARD][stages[0]] = [0] * num_microbatches
        self._rank_of = placement.ranks
        self._next = [placement.next_stage(stage) for stage in map(StageIndex, range(num_stages))]
        self._previous = [placement.previous_stage(stage) for stage in map(StageIndex, range(num_stages))]

    def arrival(self, kind: Kind, stage: StageIndex) -> int | None:
        """When the input of the stage's next forward or input gradient is there; None: what makes it is not put yet."""
        microbatch = (self.forwards if kind is Kind.FORWARD else self.inputs)[stage]
        arrived = self._arrived[kind][stage]
        return arrived[microbatch] if microbatch < len(arrived) else None

    def cost(self, kind: Kind, stage: StageIndex) -> int:
        return self._times[kind][stage]

    def delay(self, stage: StageIndex, other: StageIndex) -> int:
        """Between two neighbouring stages."""
        return self._costs.delays[min(stage, other)]

    def put_forward(self, stage: StageIndex) -> None:
        rank = self._rank_of[stage]
        self.room[rank] -= self.activation
        if self.room[rank] < 0 or self.forwards[stage] >= self.num_microbatches:
            raise DeadEnd
        end = self._put(Kind.FORWARD, stage, self.forwards[stage])
        self.forwards[stage] += 1
        below = self._next[stage]
        if below is None:
            self._arrived[Kind.BACKWARD_INPUT][stage].append(end)
        else:
            self._arrived[Kind.FORWARD][below].append(end + self.delay(stage, below))

    def put_input(self, stage: StageIndex) -> None:
        """The backward for the input; that for the weights joins the queue."""
        rank = self._rank_of[stage]
        microbatch = self.inputs[stage]
        end = self._put(Kind.BACKWARD_INPUT, stage, microbatch)
        self.inputs[stage] += 1
        self.room[rank] += self._freed_by_input
        self.waiting[rank].append((stage, Kind.BACKWARD_WEIGHT, microbatch))
        above = self._previous[stage]
        if above is not None:
            self._arrived[Kind.BACKWARD_INPUT][above].append(end + self.delay(stage, above))

    def put_weight(self, rank: int) -> None:
        """The weight gradient that has waited longest on the rank."""
        action = self.waiting[rank].popleft()
        self._orders[rank].append(action)
        self.free_at[rank] += self._times[Kind.BACKWARD_WEIGHT][action[0]]
        self.room[rank] += self.freed_by_weight

    def next_weight(self, rank: int) -> int:
        """What the next weight gradient of the rank takes."""
        return self._times[Kind.BACKWARD_WEIGHT][self.waiting[rank][0][0]]

    def make_room(self, rank: int) -> bool:
        """Do weight gradients until one more activation fits; False if it does not fit after all of them."""
        while self.room[rank] < self.activation and self.waiting[rank]:
            self.put_weight(rank)
        return self.room[rank] >= self.activation

    def fill(self, rank: int, until: int) -> int:
        """Weight gradients into the gap before ``until``, as many as fit. What is left of it; 0 where none waits."""
        while self.waiting[rank] and self.free_at[rank] + self.next_weight(rank) <= until:
            self.put_weight(rank)
        return max(until - self.free_at[rank], 0) if self.waiting[rank] else 0

    def slack(self, rank: int) -> int:
        """How much longer the rank may idle without becoming the one that idles most."""
        return self._most_idle - self.idle[rank]

    def finish(self) -> None:
        """All the weight gradients that are left."""
        for rank, queue in enumerate(self.waiting):
            while queue:
                self.put_weight(rank)

    @property
    def span(self) -> int:
        """The longest time from first start to last end of any one rank."""
        work = [sum([self._times[kind][stage] for stage, kind, _ in order]) for order in self._orders]
        return max(map(sum, zip(work, self.idle, strict=True)))

    @property
    def makespan(self) -> int:
        return max(self.free_at)

    def schedule(self) -> Schedule:
        orders = tuple(
            tuple([Compute(stage, kind, MicrobatchIndex(index)) for stage, kind, index in order])
            for order in self._orders
        )
        return Schedule(self._name, self.placement, self.num_microbatches, orders)

    def _put(self, kind: Kind, stage: StageIndex, index: int) -> int:
        """When it ends."""
        rank, arrival = self._rank_of[stage], self.arrival(kind, stage)
        if arrival is None:
            raise DeadEnd
        free = start = self.free_at[rank]
        if arrival > free:
            start = arrival
            if self._orders[rank]:
                self.idle[rank] += start - free
                self._most_idle = max(self._most_idle, self.idle[rank])
        self._orders[rank].append((stage, kind, index))
        self.free_at[rank] = end = start + self._times[kind][stage]
        return end
