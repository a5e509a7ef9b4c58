"""Clocks: how far each rank's monotonic clock is from rank 0's.

Each rank exchanges a few time stamps with rank 0 and believes the exchange with the shortest round trip: the
offset is then known to within half of it (D. L. Mills, Internet Time Synchronization, IEEE Trans. Commun. 39
(10), 1991). Without this, spans of different machines line up only by luck.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from fullbore.runtime.mesh import Mesh

__all__ = ["ClockReading", "read_clock"]

_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Add ``offset_ns`` to this rank's time to get rank 0's, right to within ``uncertainty_ns``."""

    at_ns: int
    """When it was read, on this rank's clock."""

    offset_ns: int
    uncertainty_ns: int


def read_clock(mesh: Mesh) -> ClockReading:
    """Compare with rank 0. Every rank of the pipeline calls this together."""
    group = mesh.steps_group
    best = ClockReading(time.perf_counter_ns(), 0, 0 if mesh.rank == 0 else 2**62)
    for other in range(1, mesh.num_ranks):
        if mesh.rank == 0:
            for _ in range(_ROUNDS):
                dist.recv(torch.empty(1, dtype=torch.int64), mesh.ranks[other], group=group)
                dist.send(torch.tensor([time.perf_counter_ns()]), mesh.ranks[other], group=group)
        elif mesh.rank == other:
            for _ in range(_ROUNDS):
                reply = torch.empty(1, dtype=torch.int64)
                asked = time.perf_counter_ns()
                dist.send(torch.zeros(1, dtype=torch.int64), mesh.ranks[0], group=group)
                dist.recv(reply, mesh.ranks[0], group=group)
                heard = time.perf_counter_ns()
                half = (heard - asked + 1) // 2
                if half < best.uncertainty_ns:
                    best = ClockReading(heard, int(reply.item()) - (asked + heard) // 2, half)
    return best
