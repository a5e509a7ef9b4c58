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
        self.orders: list[list[Compute]] = [[] for _ in range(num_ranks)]
        self.free_at = [0] * num_ranks
        self.idle = [0] * num_ranks
        """Of each rank, since its first action."""

        self.waiting: list[deque[Compute]] = [deque() for _ in range(num_ranks)]
        """The weight gradients that each rank still has to do."""

        self.forwards = [0] * num_stages
        self.inputs = [0] * num_stages
        """How many forwards and input gradients each stage has put: also the next microbatch."""

        self._arrived: dict[tuple[Kind, StageIndex, int], int] = {}
        self._rank_of = placement.ranks

    def arrival(self, kind: Kind, stage: StageIndex) -> int | None:
        """When the input of the stage's next forward or input gradient is there; None: what makes it is not put yet."""
        first = kind is Kind.FORWARD and self.placement.previous_stage(stage) is None
        microbatch = (self.forwards if kind is Kind.FORWARD else self.inputs)[stage]
        return 0 if first else self._arrived.get((kind, stage, microbatch))

    def cost(self, kind: Kind, stage: StageIndex) -> int:
        return self._costs.stages[stage].of(kind)

    def delay(self, stage: StageIndex, other: StageIndex) -> int:
        """Between two neighbouring stages."""
        return self._costs.delays[min(stage, other)]

    def put_forward(self, stage: StageIndex) -> None:
        rank = self._rank_of[stage]
        self.room[rank] -= self.activation
        if self.room[rank] < 0 or self.forwards[stage] >= self.num_microbatches:
            raise DeadEnd
        end, microbatch = self._put(Kind.FORWARD, stage, self.forwards[stage])
        self.forwards[stage] += 1
        below = self.placement.next_stage(stage)
        if below is None:
            self._arrived[Kind.BACKWARD_INPUT, stage, microbatch] = end
        else:
            self._arrived[Kind.FORWARD, below, microbatch] = end + self.delay(stage, below)

    def put_input(self, stage: StageIndex) -> None:
        """The backward for the input; that for the weights joins the queue."""
        rank = self._rank_of[stage]
        end, microbatch = self._put(Kind.BACKWARD_INPUT, stage, self.inputs[stage])
        self.inputs[stage] += 1
        self.room[rank] += self._freed_by_input
        self.waiting[rank].append(Compute(stage, Kind.BACKWARD_WEIGHT, microbatch))
        above = self.placement.previous_stage(stage)
        if above is not None:
            self._arrived[Kind.BACKWARD_INPUT, above, microbatch] = end + self.delay(stage, above)

    def put_weight(self, rank: int) -> None:
        """The weight gradient that has waited longest on the rank."""
        action = self.waiting[rank].popleft()
        self.orders[rank].append(action)
        self.free_at[rank] += self.cost(Kind.BACKWARD_WEIGHT, action.stage)
        self.room[rank] += self.freed_by_weight

    def next_weight(self, rank: int) -> int:
        """What the next weight gradient of the rank takes."""
        return self.cost(Kind.BACKWARD_WEIGHT, self.waiting[rank][0].stage)

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
        return max(self.idle) - self.idle[rank]

    def finish(self) -> None:
        """All the weight gradients that are left."""
        for rank, queue in enumerate(self.waiting):
            while queue:
                self.put_weight(rank)

    @property
    def span(self) -> int:
        """The longest time from first start to last end of any one rank."""
        work = [sum(self.cost(action.kind, action.stage) for action in order) for order in self.orders]
        return max(map(sum, zip(work, self.idle, strict=True)))

    @property
    def makespan(self) -> int:
        return max(self.free_at)

    def schedule(self) -> Schedule:
        return Schedule(self._name, self.placement, self.num_microbatches, tuple(map(tuple, self.orders)))

    def _put(self, kind: Kind, stage: StageIndex, index: int) -> tuple[int, MicrobatchIndex]:
        rank, arrival = self._rank_of[stage], self.arrival(kind, stage)
        if arrival is None:
            raise DeadEnd
        start = max(self.free_at[rank], arrival)
        if self.orders[rank]:
            self.idle[rank] += start - self.free_at[rank]
        self.orders[rank].append(Compute(stage, kind, MicrobatchIndex(index)))
        self.free_at[rank] = start + self.cost(kind, stage)
        return self.free_at[rank], MicrobatchIndex(index)
