"""Schedules over any placement, bidirectional ones too: whatever the placement says, in random valid order."""

from __future__ import annotations

from random import Random

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule


def shuffled_streams(placement: Placement, *, num_microbatches: int, split: bool, seed: int) -> Schedule:
    """Microbatch i takes stream i mod the number of streams; take any action that has its data until none is left."""
    random, backward = Random(seed), Kind.BACKWARD_INPUT if split else Kind.BACKWARD
    ready = [
        Compute(placement.streams[mb % placement.num_streams][0], Kind.FORWARD, MicrobatchIndex(mb))
        for mb in range(num_microbatches)
    ]
    orders: list[list[Compute]] = [[] for _ in range(placement.num_ranks)]
    while ready:
        action = ready.pop(random.randrange(len(ready)))
        stage, mb = action.stage, action.microbatch
        orders[placement.rank_of(stage)].append(action)
        if action.kind is Kind.FORWARD:
            below = placement.next_stage(stage)
            ready.append(Compute(stage, backward, mb) if below is None else Compute(below, Kind.FORWARD, mb))
        elif action.kind is backward:
            above: StageIndex | None = placement.previous_stage(stage)
            ready += [] if above is None else [Compute(above, backward, mb)]
            ready += [Compute(stage, Kind.BACKWARD_WEIGHT, mb)] if split else []
    return Schedule("shuffled", placement, num_microbatches, tuple(map(tuple, orders)))
