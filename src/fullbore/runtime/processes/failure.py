"""What ended this rank, said by the rank itself: its place, and the cause or the symptom."""

from __future__ import annotations

import pickle
import sys

from fullbore.errors import FullboreError, NeighborLost, RankFailed, TransferStalled
from fullbore.runtime.processes.blame import blame
from fullbore.runtime.processes.board import BoardEntry

__all__ = ["failure_of", "picklable"]


def failure_of(error: BaseException, *, rank: int, doing: BoardEntry) -> FullboreError:
    """fullbore's own errors as they are; anything else becomes a RankFailed that says where and why.

    What torch.distributed raises where nobody catches it (while the group is made, say) is told apart: another rank
    that is late or gone is no fault of this one.
    """
    if isinstance(error, FullboreError):
        return error
    if "torch" in sys.modules:
        from fullbore.runtime.transport.torch_errors import symptom
        from fullbore.runtime.transport.transport import PeerLost

        found = symptom(error)
        if found is not None:
            lost = isinstance(found, PeerLost)
            kind, what = (NeighborLost, "lost") if lost else (TransferStalled, "waited in vain for")
            message = f"rank {rank} {what} another rank {doing.where()} ({found})"
            return kind(message, rank=rank, action=doing.doing)
    return RankFailed(f"rank {rank} failed {doing.where()}: {blame(error)}", rank=rank, action=doing.doing)


def picklable(error: FullboreError) -> FullboreError:
    """Errors cross the pipe as they are where they can; their causes and frames stay behind."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return FullboreError(str(error))
    return error
