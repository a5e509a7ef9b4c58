"""Schedules that split backwards, made here so that the runtime's tests do not depend on which are registered."""

from __future__ import annotations

from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule


def one_forward_one_input(num_ranks: int, num_microbatches: int, *, lag: int | None = None) -> Schedule:
    """1F1B whose B is I, and W ``lag`` microbatches later: with ``lag`` = rank it is ZB-H1's order (Qi et al.,
    arXiv 2401.10241); the weight gradients that are left come at the end."""
    orders = []
    for rank in range(num_ranks):
        behind = rank if lag is None else lag
        warmup = min(num_ranks - 1 - rank, num_microbatches)
        order = [_action(rank, Kind.FORWARD, mb) for mb in range(warmup)]
        owed: list[int] = []
        for mb in range(num_microbatches):
            if warmup + mb < num_microbatches:
                order.append(_action(rank, Kind.FORWARD, warmup + mb))
            order.append(_action(rank, Kind.BACKWARD_INPUT, mb))
            owed.append(mb)
            if len(owed) > behind:
                order.append(_action(rank, Kind.BACKWARD_WEIGHT, owed.pop(0)))
        orders.append((*order, *(_action(rank, Kind.BACKWARD_WEIGHT, mb) for mb in owed)))
    return Schedule("1f1i", Placement.linear(num_ranks), num_microbatches, tuple(orders))


def mixed(num_ranks: int, num_microbatches: int) -> Schedule:
    """Every second backward is split, its W at the end."""
    orders = []
    for order in one_forward_one_input(num_ranks, num_microbatches, lag=num_microbatches).orders:
        kept = []
        for action in order:
            whole = action.microbatch % 2 == 0
            if action.kind is Kind.BACKWARD_INPUT and whole:
                kept.append(Compute(action.stage, Kind.BACKWARD, action.microbatch))
            elif not (action.kind is Kind.BACKWARD_WEIGHT and whole):
                kept.append(action)
        orders.append(tuple(kept))
    return Schedule("mixed", Placement.linear(num_ranks), num_microbatches, tuple(orders))


def v_shaped(num_microbatches: int) -> Schedule:
    """Two ranks, four stages in V shape, all forwards first, then all I, then all W: rank 0 has the first stage and the
    last."""
    orders = []
    for stages in ((0, 3), (1, 2)):
        order = [_action(stage, Kind.FORWARD, mb) for stage in stages for mb in range(num_microbatches)]
        for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT):
            order += [_action(stage, kind, mb) for stage in reversed(stages) for mb in range(num_microbatches)]
        orders.append(tuple(order))
    return Schedule("v-all", Placement.snake(2, num_chunks=2), num_microbatches, tuple(orders))


def _action(stage: int, kind: Kind, microbatch: int) -> Compute:
    return Compute(StageIndex(stage), kind, MicrobatchIndex(microbatch))
