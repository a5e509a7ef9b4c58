"""Clocks: how far each rank's monotonic clock is from rank 0's.

Each rank exchanges a few time stamps with rank 0 and believes the exchange with the shortest round trip: the
offset is then known to within half of it (D. L. Mills, Internet Time Synchronization, IEEE Trans. Commun. 39
(10), 1991). Without this, spans of different machines line up only by luck.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from fullbore.timeline.clock import ClockOffset

__all__ = ["read_clock"]

_ROUNDS = 24


def read_clock(group: dist.ProcessGroup | None, *, rank: int, ranks: Sequence[int]) -> ClockOffset:
    """Compare with rank 0 over ``group``, whose global ranks are ``ranks``. Every rank calls this together."""
    best = ClockOffset(0, 0 if rank == 0 else 2**62, time.perf_counter_ns())
    for other in range(1, len(ranks)):
        if rank == 0:
            for _ in range(_ROUNDS):
                dist.recv(torch.empty(1, dtype=torch.int64), ranks[other], group=group)
                dist.send(torch.tensor([time.perf_counter_ns()]), ranks[other], group=group)
        elif rank == other:
            for _ in range(_ROUNDS):
                reply = torch.empty(1, dtype=torch.int64)
                asked = time.perf_counter_ns()
                dist.send(torch.zeros(1, dtype=torch.int64), ranks[0], group=group)
                dist.recv(reply, ranks[0], group=group)
                heard = time.perf_counter_ns()
                half = (heard - asked + 1) // 2
                if half < best.uncertainty_ns:
                    best = ClockOffset(int(reply.item()) - (asked + heard) // 2, half, heard)
    return best
