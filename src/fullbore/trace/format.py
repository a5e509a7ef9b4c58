"""The trace file of one rank: JSON lines in ``RUN_DIR/trace/rank-0000.jsonl``.

    {"fullbore_trace": 1, "rank": 1, "num_ranks": 2, "placement": [0, 1], "schedule": "1f1b", "clock": {...}}
    {"step": 1, "spans": [["compute", "1F0", null, 1200, 3400], ["flush", null, "optimizer", 9000, 9900]]}
    ...
    {"clock_end": {"offset_ns": -310, "uncertainty_ns": 40, "at_ns": 81234567}}

The header has ``"streams": 2`` too where stages run in both directions. A span is row, action, activity, start, end,
in nanoseconds of the rank's own clock. Steps count from 1. One line per step, written when the step ends: after a
crash everything but the last line is whole. A resumed run appends a new header to the same file: a new process has a
new clock, so each header begins a segment with its own calibration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fullbore.timeline.clock import ClockOffset

__all__ = ["VERSION", "clock_document", "trace_path"]

VERSION = 1


def trace_path(run_dir: Path, *, rank: int) -> Path:
    return run_dir / "trace" / f"rank-{rank:04d}.jsonl"


def clock_document(clock: ClockOffset) -> dict[str, Any]:
    return {"offset_ns": clock.offset_ns, "uncertainty_ns": clock.uncertainty_ns, "at_ns": clock.at_ns}
