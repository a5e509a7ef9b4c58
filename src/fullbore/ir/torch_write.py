"""Writing PyTorch's pipeline CSV (`fullbore.ir.torch_csv` reads it), so that PyTorch runs a schedule made here.

Compute only, cells are the actions and there are no empty ones; two that may run at once share a cell,
``(0F3;3B1)OVERLAP_F_B``. PyTorch adds communication, and UNSHARD and RESHARD for sharded parameters. With
communication, PyTorch adds nothing: so REDUCE_GRAD is written after the last backward of each stage (it scales and
reduces the gradients), while UNSHARD and RESHARD are not. Take the compute-only form for FSDP.

The lines end as PyTorch's own do, with a carriage return: write the text without translating line ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fullbore.errors import ScheduleError
from fullbore.ir.action import Compute, Kind
from fullbore.ir.explicit import Cell, ExplicitSchedule, SendCell
from fullbore.ir.explicit_spec import check_explicit
from fullbore.ir.schedule import Overlap, Schedule
from fullbore.ir.validate import validate

__all__ = ["format_torch_csv"]


def format_torch_csv(schedule: Schedule | ExplicitSchedule) -> str:
    """The CSV: compute only for a `Schedule`, with communication for an `ExplicitSchedule`.

    Raises:
        InvalidSchedule: it breaks a rule of its own form.
        ScheduleError: PyTorch could not run it, or would run it wrongly; names the action.
    """
    if schedule.placement.num_streams != 1:
        raise ScheduleError(
            f"PyTorch runs the stages of a pipeline in one direction, and {schedule.name!r} has streams in two; "
            f"it has no CSV"
        )
    if schedule.num_slices != 1:
        raise ScheduleError(
            f"PyTorch runs whole sequences, and {schedule.name!r} cuts them into {schedule.num_slices} slices; it has "
            f"no CSV"
        )
    if isinstance(schedule, Schedule):
        validate(schedule)
        _require_runnable(schedule)
        rows = [[text for text in _texts(order, schedule.overlaps) if text] for order in schedule.orders]
    else:
        check_explicit(schedule)
        _require_runnable(schedule.compute_part())
        rows = [list(_with_reductions(row, schedule.overlaps)) for row in schedule.orders]
    page = io.StringIO(newline="")
    csv.writer(page).writerows(rows)
    return page.getvalue()


def _require_runnable(schedule: Schedule) -> None:
    """What PyTorch's runtime asks for beyond the rules of a schedule."""
    last = schedule.num_stages - 1
    backward = False
    losses: list[Compute] = []
    for order in schedule.orders:
        for action in order:
            if action.kind is Kind.RECOMPUTE:
                raise ScheduleError(f"PyTorch has no action for a recomputation (given {action}); leave out the Rs")
            backward = backward or action.kind is not Kind.FORWARD
            if action.stage == last and action.kind is Kind.FORWARD:
                losses.append(action)
    if not backward:
        raise ScheduleError(f"PyTorch's CSV is for training: {schedule.name!r} has no backward")
    for index, action in enumerate(losses):
        if action.microbatch != index:
            raise ScheduleError(
                f"PyTorch pairs losses with microbatches by the order of the last stage's forwards, so they must be 0, "
                f"1, 2, ... (given {action} in place {index}); its gradients would be wrong without an error"
            )


def _texts(row: Sequence[Cell], overlaps: frozenset[Overlap]) -> list[str]:
    """[position] what is written for each cell; nothing for a forward that shares the cell of the backward after it."""
    texts = list(map(str, row))
    joined = {(pair.forward, pair.backward) for pair in overlaps}
    for position, (one, other) in enumerate(pairwise(row)):
        if (one, other) in joined:
            texts[position : position + 2] = "", f"({one};{other})OVERLAP_F_B"
    return texts


def _with_reductions(row: tuple[Cell, ...], overlaps: frozenset[Overlap]) -> Iterator[str]:
    """REDUCE_GRAD behind the last whole or weight backward of each stage, and behind the send that belongs to it."""
    last = {
        cell.stage: position
        for position, cell in enumerate(row)
        if isinstance(cell, Compute) and cell.kind.makes_weight_gradient
    }
    due = {position: stage for stage, position in last.items()}
    owed: list[int] = []
    for position, (cell, text) in enumerate(zip(row, _texts(row, overlaps), strict=True)):
        if not isinstance(cell, SendCell):
            yield from (f"{stage}REDUCE_GRAD" for stage in owed)
            owed.clear()
        if text:
            yield text
        if position in due:
            owed.append(due[position])
    yield from (f"{stage}REDUCE_GRAD" for stage in owed)
