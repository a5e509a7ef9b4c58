"""1F1B-V: 1F1B over a V, with whole backwards and two thirds of 1F1B's memory.

Penghui Qi, Xinyi Wan, Nyamdavaa Amar, Min Lin: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, as in
its published code (sail-sg/zero-bubble-pipeline-parallelism, scheduler/v1f1b.py), written anew here.

p ranks, two stages each in a V. Every rank keeps 2p // 3 + 1 shares where 1F1B's first keeps p. p = 2, m = 4, a forward
one slot, a backward two, chunk 0 has digits, chunk 1 letters (a = microbatch 0), a prime marks a backward:

    rank 0   0  1  2  a  a' a' b  b' b' 3  0' 0' c  c' c' .  1' 1' d  d' d' .  2' 2' .  .  3' 3'
    rank 1   .  0  a  1  b  .  a' a' 0' 0' 2  c  b' b' 1' 1' 3  d  c' c' 2' 2' d' d' 3' 3' .  .

A block of slots repeats every 6 of them, as in `fullbore.schedules.building_block`, a backward taking two. The wave
goes down the first stages, up the second ones, and back, a slot a forward, two a backward. With a backward on every
rank after the next, every third would want the slots that an earlier microbatch has: so the wave waits three slots
after every third backward, in step with p. Then, in order of time, every action moves into the earliest free slots
after its input and its predecessor; a forward only as far as no rank keeps more than the fullest one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "1f1b-v"
_PERIOD = 6
_SLOTS = {Kind.FORWARD: 1, Kind.BACKWARD: 2}


def _make(sizes: Sizes) -> Schedule:
    p, m = sizes.num_ranks, sizes.num_microbatches
    placement = Placement.snake(p, num_chunks=2)
    timed = sorted(
        (start + _PERIOD * index, placement.rank_of(stage), number, index, stage, kind)
        for number, (start, stage, kind) in enumerate(_block(p))
        for index in range(m)
    )
    plan = _Plan(placement)
    for start, _, _, index, stage, kind in timed:
        plan.keep(Compute(stage, kind, MicrobatchIndex(index)), start)
    plan.count()
    for start, _, _, index, stage, kind in timed:
        plan.move(Compute(stage, kind, MicrobatchIndex(index)), start)
    return Schedule(_NAME, placement, m, plan.orders())


def _block(p: int) -> Iterator[tuple[int, StageIndex, Kind]]:
    """(slot, stage, kind) of one microbatch."""
    for stage in range(2 * p):
        yield stage, StageIndex(stage), Kind.FORWARD
    now = 2 * p + (3 if p % 3 == 0 else 0)
    done = (1 - p) % 3
    for stage in reversed(range(2 * p)):
        yield now, StageIndex(stage), Kind.BACKWARD
        now, done = now + 2, done + 1
        if done == 3:
            now, done = now + 3, 0


class _Plan:
    """Which slots each rank has taken, and what it keeps."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._taken: list[dict[int, Compute]] = [{} for _ in range(placement.num_ranks)]
        self._start: dict[Compute, int] = {}
        self._kept: list[list[int]] = []
        self._most = 0

    def keep(self, action: Compute, start: int) -> None:
        taken = self._taken[self._placement.rank_of(action.stage)]
        for slot in range(start, start + _SLOTS[action.kind]):
            assert slot not in taken, f"{action} and {taken[slot]} share slot {slot}"
            taken[slot] = action

    def count(self) -> None:
        """What each rank keeps in each slot; an activation goes in the second slot of its backward."""
        for taken in self._taken:
            steps = [0] * (max(taken) + 1)
            for slot, action in taken.items():
                if action.kind is Kind.FORWARD:
                    steps[slot] += 1
                elif taken.get(slot - 1) == action:
                    steps[slot] -= 1
            self._kept.append(list(accumulate(steps)))
        self._most = max(map(max, self._kept))

    def move(self, action: Compute, start: int) -> None:
        rank = self._placement.rank_of(action.stage)
        taken, kept, length = self._taken[rank], self._kept[rank], _SLOTS[action.kind]
        to = self._earliest(action)
        if action.kind is Kind.FORWARD:
            place = start
            while place > to and kept[place - 1] < self._most:
                place -= 1
            to = place
        while to < start and any(taken.get(slot, action) != action for slot in range(to, to + length)):
            to += 1
        for slot in range(start, start + length):
            del taken[slot]
        for slot in range(to, to + length):
            taken[slot] = action
        for slot in range(to + length - 1, start + length - 1):
            kept[slot] += 1 if action.kind is Kind.FORWARD else -1
        self._start[action] = to

    def _earliest(self, action: Compute) -> int:
        """After the inputs and after the microbatch before."""
        forward = action.kind is Kind.FORWARD
        beside = self._placement.previous_stage if forward else self._placement.next_stage
        giver = beside(action.stage)
        ends = [0]
        if giver is not None:
            ends.append(self._end(Compute(giver, action.kind, action.microbatch)))
        elif not forward:
            ends.append(self._end(action.of_kind(Kind.FORWARD)))
        if action.microbatch > 0:
            ends.append(self._end(Compute(action.stage, action.kind, MicrobatchIndex(action.microbatch - 1))))
        return max(ends)

    def _end(self, action: Compute) -> int:
        return self._start[action] + _SLOTS[action.kind]

    def orders(self) -> tuple[tuple[Compute, ...], ...]:
        return tuple(tuple(dict.fromkeys(taken[slot] for slot in sorted(taken))) for taken in self._taken)


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return 2 * min(2 * sizes.num_ranks // 3 + 1, sizes.num_microbatches)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="1F1B over a V: whole backwards, two thirds of 1F1B's memory, about two thirds of its bubble",
    paper="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
    constraints="any number of ranks and microbatches",
    construct=lambda sizes, _: _make(sizes),
    place=lambda sizes: Placement.snake(sizes.num_ranks, num_chunks=2),
    chunks=2,
    peak=_peak,
    peak_is_exact=False,
)
