"""One step of all ranks on one clock: each rank has its own spans, on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable

from fullbore.runtime.mesh import Mesh
from fullbore.timeline.shift import from_zero, shifted
from fullbore.timeline.span import Span, Timeline

__all__ = ["common_timeline"]


def common_timeline(spans: Iterable[Span], *, mesh: Mesh) -> Timeline:
    """Everybody's spans on rank 0's clock, from 0. Every rank calls this with its own."""
    mine = Timeline.of(spans, num_ranks=mesh.num_ranks)
    by_rank = mesh.gather(shifted(mine, by_ns=mesh.clock.offset_ns))
    together = [span for timeline in by_rank for span in timeline.spans]
    return from_zero(Timeline.of(together, num_ranks=mesh.num_ranks))
