"""Building blocks: schedules that repeat what each rank does for one microbatch, so that memory follows from the block.

Penghui Qi, Xinyi Wan, Nyamdavaa Amar, Min Lin: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
sections 2 (the framework) and 3 (V-Min, V-Half); the passes as in its published code (sail-sg/
zero-bubble-pipeline-parallelism, scheduler/zbv_greedy.py), written anew here.

A block gives every rank four slots of unit length: forward of its first and of its second stage (the model lies as a
V), then the backward for the input of the second and of the first. It repeats every 6 slots: two stages, three kinds.
An activation that lives for l slots takes ceil(l / 6) places, and in a V a rank's long-lived stage is paired with a
short-lived one. From the block to a schedule:

1. repeat it for every microbatch, and let weight gradients fill the free slots, first in, first out;
2. squeeze: drop idle slots without changing any order;
3. before the first gradient is back at the start of the model and after its last forward, move actions into earlier
   free slots, as long as no rank keeps more than the fullest one does;
4. the last step once more for the end alone, with the weight gradients left open and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.sizes import Sizes

__all__ = ["Block", "repeated"]

Block = Callable[[int, int], tuple[int, int, int, int]]
"""(ranks, rank) -> slots of: forward of its first stage, of its second, input gradient of the second, of the first."""

_PERIOD = 6
_F1, _F2, _I2, _I1, _W = range(5)
_Row = list[list[int]]
"""[kind of action][microbatch] -> slot, for one rank; `_W` counts weight gradients of both stages together."""


def repeated(name: str, sizes: Sizes, block: Block) -> Schedule:
    """The schedule that a block makes."""
    p, m = sizes.num_ranks, sizes.num_microbatches
    rows = [[[start + _PERIOD * index for index in range(m)] for start in block(p, rank)] for rank in range(p)]
    rows = _earlier([[*row, _weights(row)] for row in rows])
    rows = _squeezed(rows)
    rows = _earlier_end([row[:_W] for row in rows])
    rows = _squeezed([[*row, _weights(row)] for row in rows])
    orders = tuple(_order(row[:_W], rank, num_ranks=p) for rank, row in enumerate(rows))
    return Schedule(name, Placement.snake(p, num_chunks=2), m, orders)


def _weights(row: _Row) -> list[int]:
    """Slots for the weight gradients: each free slot takes one, if one waits."""
    return [slot for slot, _ in _free_slots_of_weights(row)]


def _free_slots_of_weights(row: _Row) -> Iterator[tuple[int, int]]:
    """(slot, `_I2` or `_I1`) of each weight gradient: that of the second stage first, where both wait."""
    taken = {slot: kind for kind in range(_W) for slot in row[kind]}
    waiting = {_I2: 0, _I1: 0}
    slot, last = 0, max(taken)
    while slot <= last or any(waiting.values()):
        kind = taken.get(slot)
        if kind in waiting:
            waiting[kind] += 1
        elif kind is None and (first := next((one for one, count in waiting.items() if count), None)) is not None:
            waiting[first] -= 1
            yield slot, first
        slot += 1


def _order(row: _Row, rank: int, *, num_ranks: int) -> tuple[Compute, ...]:
    first, second = StageIndex(rank), StageIndex(2 * num_ranks - 1 - rank)
    what = {
        _F1: (first, Kind.FORWARD),
        _F2: (second, Kind.FORWARD),
        _I2: (second, Kind.BACKWARD_INPUT),
        _I1: (first, Kind.BACKWARD_INPUT),
    }
    timed = [(slot, Compute(*what[kind], MicrobatchIndex(mb))) for kind in what for mb, slot in enumerate(row[kind])]
    count = {_I2: 0, _I1: 0}
    for slot, kind in _free_slots_of_weights(row):
        timed.append((slot, Compute(what[kind][0], Kind.BACKWARD_WEIGHT, MicrobatchIndex(count[kind]))))
        count[kind] += 1
    return tuple(action for _, action in sorted(timed, key=lambda one: one[0]))


def _in_time(rows: list[_Row]) -> list[tuple[int, int, int, int]]:
    """(slot, rank, kind, microbatch) of all actions, by slot."""
    return sorted(
        (slot, rank, kind, index)
        for rank, row in enumerate(rows)
        for kind, slots in enumerate(row)
        for index, slot in enumerate(slots)
    )


def _inputs(rows: list[_Row], rank: int, kind: int, index: int) -> Iterator[int]:
    """The slots of what an action waits for."""
    if kind in (_F1, _I2) and rank > 0:
        yield rows[rank - 1][kind][index]
    if kind in (_F2, _I1) and rank + 1 < len(rows):
        yield rows[rank + 1][kind][index]
    if kind in (_F2, _I2, _I1):
        yield rows[rank][kind - 1][index]
    if kind == _W:
        yield sorted(rows[rank][_I2] + rows[rank][_I1])[index]
    if index > 0:
        yield rows[rank][kind][index - 1]


def _squeezed(rows: list[_Row]) -> list[_Row]:
    """The same orders, every action as early as its rank and its inputs allow."""
    moved = [[list(slots) for slots in row] for row in rows]
    free = [0] * len(rows)
    for _, rank, kind, index in _in_time(rows):
        inputs = () if kind == _W else _inputs(moved, rank, kind, index)
        slot = max(free[rank], *(one + 1 for one in inputs), 0)
        moved[rank][kind][index] = slot
        free[rank] = slot + 1
    return moved


def _phases(rows: list[_Row]) -> Iterator[tuple[int, int, int, int, int]]:
    """(phase, slot, rank, kind, microbatch): 0 until the first gradient is back, 1 until the last forward starts, 2."""
    phase = 0
    last = len(rows[0][_F1]) - 1
    for slot, rank, kind, index in _in_time(rows):
        if phase == 0 and kind == _I1 and rank == 0:
            phase = 1
        if phase == 1 and kind == _F1 and index == last:
            phase = 2
            yield 1, slot, rank, kind, index
            continue
        yield phase, slot, rank, kind, index


def _earlier(rows: list[_Row]) -> list[_Row]:
    """Warmup and end move forward; weight gradients are there and free memory where they stand."""
    rows = [[list(slots) for slots in row] for row in rows]
    ends = [max(map(max, row)) + 1 for row in rows]
    change = {_F1: 1, _F2: 1, _W: -1}
    kept = []
    for row, end in zip(rows, ends, strict=True):
        steps = [0] * end
        for kind, step in change.items():
            for slot in row[kind]:
                steps[slot] += step
        kept.append(list(accumulate(steps)))
    most = max(map(max, kept))
    taken = [{slot for slots in row for slot in slots} for row in rows]
    for phase, slot, rank, kind, index in _phases(rows):
        if phase == 1:
            continue
        lowest = max((one + 1 for one in _inputs(rows, rank, kind, index)), default=0)
        best = slot
        for earlier in range(slot - 1, lowest - 1, -1):
            if kind in (_F1, _F2) and kept[rank][earlier] >= most:
                break
            if earlier not in taken[rank]:
                best = earlier
        if best != slot:
            taken[rank].remove(slot)
            taken[rank].add(best)
            rows[rank][kind][index] = best
            for between in range(best, slot):
                kept[rank][between] += change.get(kind, 0)
    return rows


def _earlier_end(rows: list[_Row]) -> list[_Row]:
    """The end moves forward; weight gradients take whatever slots are left."""
    rows = [[list(slots) for slots in row] for row in rows]
    most = max(map(_most_kept, rows))
    taken = [{slot for slots in row for slot in slots} for row in rows]
    for phase, slot, rank, kind, index in _phases(rows):
        if phase != 2:
            continue
        lowest = max((one + 1 for one in _inputs(rows, rank, kind, index)), default=0)
        for earlier in range(lowest, slot):
            if earlier not in taken[rank]:
                rows[rank][kind][index] = earlier
                if _most_kept(rows[rank]) <= most:
                    taken[rank].remove(slot)
                    taken[rank].add(earlier)
                    break
                rows[rank][kind][index] = slot
    return rows


def _most_kept(row: _Row) -> int:
    """Peak in activations where every free slot takes a weight gradient, if one waits."""
    taken = {slot: kind for kind, slots in enumerate(row) for slot in slots}
    kept = waiting = most = 0
    for slot in range(max(taken) + 1):
        kind = taken.get(slot)
        if kind in (_F1, _F2):
            kept += 1
            most = max(most, kept)
        elif kind is not None:
            waiting += 1
        elif waiting:
            waiting -= 1
            kept -= 1
    return most
