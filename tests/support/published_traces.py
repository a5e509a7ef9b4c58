"""Traces that others published, where they are at hand: never part of the repository.

Looked for in the folder that FULLBORE_DATA names, and in ``shared/data`` beside the repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.timeline.span import Row, Span, Timeline

_ROOT = Path(__file__).parents[2]
_KINDS = {"forward-compute": Kind.FORWARD, "backward-compute": Kind.BACKWARD}


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The forwards and backwards of one step on one data-parallel rank."""

    step: int
    data_rank: int
    timeline: Timeline


def straggler_steps(name: str) -> Iterator[MeasuredStep]:
    """Of the traces of arXiv 2505.05713. Skips the test where the file or pyarrow is absent."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="reading parquet needs pyarrow")
    table = parquet.read_table(_find(Path("straggler_traces") / f"trace-{name}.parquet")).to_pydict()
    spans: dict[tuple[int, int], list[Span]] = {}
    columns = ("step", "dp_rank", "stage", "optype", "mb_id", "start_ts", "duration")
    for step, data_rank, stage, operation, microbatch, start, duration in zip(
        *(table[column] for column in columns), strict=True
    ):
        if operation in _KINDS:
            action = Compute(StageIndex(stage), _KINDS[operation], MicrobatchIndex(microbatch))
            start_ns = round(start * 1e9)
            span = Span(Rank(stage), Row.COMPUTE, action, None, start_ns, start_ns + round(duration * 1e9))
            spans.setdefault((step, data_rank), []).append(span)
    num_ranks = max(table["stage"]) + 1
    for (step, data_rank), held in sorted(spans.items()):
        yield MeasuredStep(step, data_rank, Timeline.of(held, num_ranks=num_ranks))


def _find(name: Path) -> Path:
    named = os.environ.get("FULLBORE_DATA")
    folders = [Path(named)] if named else [_ROOT / "shared" / "data", _ROOT.parent / "shared" / "data"]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"{name} is not at hand; FULLBORE_DATA names the folder that holds it")
