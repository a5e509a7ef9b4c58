"""What PyTorch's CSV does not say and its rows show: which rank holds a stage, and how many microbatches there are.

A file may be wrong, and then the rules should name the one cell that is, so both are decided by majority: a stage
belongs to the rank with most of its cells, and m is the count that most stages agree on. PyTorch's own 1F1B order
numbers the forwards of the last rank 1 to m in place of 0 to m - 1; the other ranks outvote it, and forward m is an
unknown microbatch in its cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fullbore.errors import ScheduleError
from fullbore.ids import Rank
from fullbore.ir.action import Compute, Kind
from fullbore.ir.explicit import Cell
from fullbore.ir.placement import Placement

__all__ = ["num_microbatches_of", "placement_of"]


def placement_of(rows: Sequence[Sequence[Cell]], *, where: str) -> Placement:
    """The rank of stages 0, 1, 2, ... up to the first that no row has; a cell beyond it breaks a rule.

    Raises:
        ScheduleError: a row has none of these stages, so that too much is missing to name one cell.
    """
    votes: dict[int, Counter[int]] = {}
    for rank, row in enumerate(rows):
        for cell in row:
            votes.setdefault(cell.stage, Counter())[rank] += 1
    ranks: list[Rank] = []
    while len(ranks) in votes:
        ballot = votes[len(ranks)]
        ranks.append(Rank(max(ballot, key=lambda rank: (ballot[rank], -rank))))
    without = sorted(set(range(len(rows))) - set(ranks))
    if without:
        raise ScheduleError(
            f"{where}: stages are 0, 1, 2, ... without a gap, and every row has one (stage {len(ranks)} is in no row)"
            if len(ranks) not in votes and any(stage > len(ranks) for stage in votes)
            else f"{where}: a stage is on one rank, and every rank has one (rows without a stage of their own: "
            f"{', '.join(str(rank + 1) for rank in without)})"
        )
    return Placement(tuple(ranks))


def num_microbatches_of(rows: Sequence[Sequence[Cell]]) -> int:
    """The number of different microbatches that most (stage, forward or backward) have; the larger one of a tie."""
    seen: dict[tuple[int, bool], set[int]] = {}
    for row in rows:
        for cell in row:
            if isinstance(cell, Compute) and cell.kind is not Kind.BACKWARD_WEIGHT:
                seen.setdefault((cell.stage, cell.kind is Kind.FORWARD), set()).add(cell.microbatch)
    votes = Counter(len(microbatches) for microbatches in seen.values())
    return max(votes, key=lambda count: (votes[count], count), default=0)
