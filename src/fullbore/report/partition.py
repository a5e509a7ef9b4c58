"""A planned partition as text and as the JSON document behind `fullbore partition`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from fullbore.plan.partition import PlannedPartition
from fullbore.timeline.scale import TimeScale

__all__ = ["PartitionReport"]


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What is said about one cut."""

    planned: PlannedPartition

    @property
    def reason(self) -> str:
        found, source = self.planned.found, self.planned.source
        return found.reason if source is None else f"{found.reason}; {source}"

    def document(self) -> dict[str, Any]:
        """The JSON answer."""
        found = self.planned.found
        return {
            **asdict(found),
            "reason": self.reason,
            "balance": found.balance,
            "speedup": found.speedup,
            "rank_memory_bytes": self.planned.rank_memory_bytes,
            "makespan_ns": self.planned.makespan_ns,
        }

    def text(self) -> str:
        """One line a stage, the reason, and what a step takes."""
        planned, found, scale = self.planned, self.planned.found, TimeScale.milliseconds()
        lines = ["stage  layers            time  of mean        memory"]
        mean = sum(found.stage_time_ns) / len(found.stage_time_ns)
        names = [layer.name for layer in planned.layers]
        for stage, (first, end) in enumerate(pairwise((*found.boundaries, len(names)))):
            time, memory = found.stage_time_ns[stage], found.stage_memory_bytes[stage]
            held = names[first] if end - first == 1 else f"{names[first]} to {names[end - 1]}"
            share = time / mean if mean else 1.0
            lines.append(
                f"{stage:>5}  {end - first:>6}{scale.format(time):>16}  {share:>7.2f}  {memory / 2**20:>8.1f} MiB  "
                f"{held}"
            )
        ranks = len(found.rank_time_ns)
        lines += ["", self.reason]
        if ranks > 1:
            lines.append(
                f"balance {found.balance:.2%}: a full pipe is {found.speedup:.4g} times as fast as one device, "
                f"not {ranks}"
            )
        if planned.schedule.num_stages > ranks:
            busiest = found.rank_time_ns.index(max(found.rank_time_ns))
            twice = "" if planned.schedule.placement.num_streams == 1 else ", as the layers are there twice"
            most = max(planned.rank_memory_bytes) / 2**20
            lines.append(f"rank {busiest} has the most work; ranks need up to {most:.1f} MiB{twice}")
        lines.append(
            f"one step takes {scale.format(planned.makespan_ns)} ({planned.schedule.name}, "
            f"{planned.schedule.num_microbatches} microbatches, free links)"
        )
        return "\n".join(lines) + "\n"
