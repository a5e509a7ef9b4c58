"""PyTorch's pipeline CSV: what torch.distributed.pipelining dumps and loads, and torchtitan takes as a schedule.

    0F0,0F1,0B0,0B1                              compute only: one row a rank, one cell an action
    1F0,1B0,1F1,1B1

    0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,...   with communication

From ``_dump_csv``, ``_load_csv`` and ``_Action`` in torch/distributed/pipelining/schedules.py (2.13). There is no
header: placement and the number of microbatches follow from the rows (`fullbore.ir.torch_rows`). Stricter than PyTorch,
whose pattern lets ``1F0abc`` pass as ``1F0``: what is not a cell is refused with its row and column. Dropped, and
noted: empty cells (idle slots), and UNSHARD, RESHARD, REDUCE_GRAD, which a runtime derives. A cell of two actions that
run at once, ``(0F3;3B1)OVERLAP_F_B``, becomes the two in a row, and an `Overlap` that remembers the cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind, Payload
from fullbore.ir.explicit import Cell, ExplicitSchedule, RecvCell, SendCell
from fullbore.ir.schedule import Overlap, Schedule
from fullbore.ir.torch_rows import num_microbatches_of, placement_of
from fullbore.shown import shown

__all__ = ["TorchCsv", "parse_torch_csv"]

_NUMBER = "(0|[1-9][0-9]{0,8})"
_COMPUTE = re.compile(f"{_NUMBER}([FBIW]){_NUMBER}", re.ASCII)
_TRANSFER = re.compile(f"{_NUMBER}(SEND|RECV)_([FB]){_NUMBER}", re.ASCII)
_DERIVED = re.compile(f"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD)", re.ASCII)
_OVERLAP = re.compile(r"\(([^();]*);([^();]*)\)OVERLAP_F_B")


@dataclass(frozen=True, slots=True)
class TorchCsv:
    """A schedule read from a CSV, and what the schedule does not say about it."""

    schedule: Schedule | ExplicitSchedule
    """`ExplicitSchedule` if any cell is a SEND or RECV."""

    columns: tuple[tuple[int, ...], ...]
    """For each rank the column of each cell kept, counted from 1."""

    notes: tuple[str, ...]
    """What was dropped, in words."""


def parse_torch_csv(text: str, *, name: str, where: str) -> TorchCsv:
    """Read it. Its rules are not checked here.

    Args:
        name: of the schedule; the format has none.
        where: what messages call the file.

    Raises:
        ScheduleError: names the row and column, both counted from 1, of what is not a cell.
    """
    rows: list[tuple[Cell, ...]] = []
    columns: list[tuple[int, ...]] = []
    dropped: Counter[str] = Counter()
    overlaps: set[Overlap] = set()
    for number, words in enumerate(_table(text, where=where), start=1):
        row, kept = _row(words, dropped, overlaps, where=f"{where}, row {number}")
        rows.append(row)
        columns.append(kept)
    placement = placement_of(rows, where=where)
    microbatches = num_microbatches_of(rows)
    explicit = ExplicitSchedule(name, placement, microbatches, tuple(rows), frozenset(overlaps))
    has_transfers = any(not isinstance(cell, Compute) for row in rows for cell in row)
    if has_transfers and dropped["empty"]:
        raise ScheduleError(
            f"{where}: a file with SEND and RECV cells has no empty cells (given {dropped['empty']}); remove them"
        )
    return TorchCsv(explicit if has_transfers else explicit.compute_part(), tuple(columns), _notes(dropped))


def _table(text: str, *, where: str) -> list[list[str]]:
    """The cells without the blanks around them."""
    try:
        rows = [[word.strip() for word in row] for row in csv.reader(io.StringIO(text, newline=""), strict=True)]
    except csv.Error as error:
        raise ScheduleError(f"{where} is not a CSV: {error}") from error
    for number, row in enumerate(rows, start=1):
        if not any(row):
            raise ScheduleError(
                f"{where}, row {number} is empty; a CSV has one row a rank, and each rank computes something"
            )
    if not rows:
        raise ScheduleError(f"{where} is empty; a CSV has one row a rank")
    return rows


def _row(
    words: list[str], dropped: Counter[str], overlaps: set[Overlap], *, where: str
) -> tuple[tuple[Cell, ...], tuple[int, ...]]:
    cells: list[Cell] = []
    columns: list[int] = []
    reduced: set[str] = set()
    for column, word in enumerate(words, start=1):
        derived = _DERIVED.fullmatch(word)
        if not word:
            dropped["empty"] += 1
        elif derived is not None:
            dropped[derived[2]] += 1
            if derived[2] == "REDUCE_GRAD":
                reduced.add(derived[1])
        else:
            for cell in _cells(word, overlaps, where=f"{where}, column {column}"):
                ends = isinstance(cell, Compute) and cell.kind.makes_weight_gradient
                if ends and str(cell.stage) in reduced:
                    raise ScheduleError(
                        f"{where}, column {column}: {word} comes after {cell.stage}REDUCE_GRAD, which then reduces a "
                        f"gradient that is not whole; move {cell.stage}REDUCE_GRAD behind the last B or W of the stage"
                    )
                cells.append(cell)
                columns.append(column)
    return tuple(cells), tuple(columns)


def _cells(word: str, overlaps: set[Overlap], *, where: str) -> tuple[Cell, ...]:
    """One cell, or the two of an overlap."""
    overlap = _OVERLAP.fullmatch(word)
    if overlap is None:
        return (_cell(word, where=where),)
    forward, backward = (_cell(part.strip(), where=where) for part in overlap.groups())
    if not isinstance(forward, Compute) or not isinstance(backward, Compute):
        raise ScheduleError(f"{where}: what overlaps are a forward and a backward (given {shown(repr(word))})")
    overlaps.add(Overlap(forward, backward))
    return forward, backward


def _cell(word: str, *, where: str) -> Cell:
    compute = _COMPUTE.fullmatch(word)
    if compute is not None:
        return Compute(StageIndex(int(compute[1])), Kind(compute[2]), MicrobatchIndex(int(compute[3])))
    transfer = _TRANSFER.fullmatch(word)
    if transfer is not None:
        payload = Payload.ACTIVATION if transfer[3] == "F" else Payload.GRADIENT
        make = SendCell if transfer[2] == "SEND" else RecvCell
        return make(StageIndex(int(transfer[1])), payload, MicrobatchIndex(int(transfer[4])))
    raise ScheduleError(
        f"{where}: a cell is stage, kind, microbatch, as in 2F0, with kind one of F B I W SEND_F RECV_F SEND_B RECV_B, "
        f"a stage with UNSHARD, RESHARD or REDUCE_GRAD, or an overlap as in (0F3;3B1)OVERLAP_F_B (given "
        f"{shown(repr(word))})"
    )


def _notes(dropped: Counter[str]) -> tuple[str, ...]:
    notes = []
    if dropped["empty"]:
        notes.append(f"dropped {dropped['empty']} empty cells: idle time follows from the order and the costs")
    derived = [f"{dropped[kind]} {kind}" for kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD") if dropped[kind]]
    if derived:
        notes.append(f"dropped {', '.join(derived)}: the runtime derives them")
    return tuple(notes)
