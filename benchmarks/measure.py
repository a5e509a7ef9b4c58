"""How the benchmarks measure: repeats, a median and a spread, and the machine in words that name nobody.

Systems are compared in *pairs*: in every round each runs one step, in an order that is drawn anew, and the ratio is
taken within the round. Whatever else the machine does then falls on all of them alike, and the median of the ratios
says more than the ratio of the medians.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of several repeats of the same work."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median * 1e3:8.2f} ms ({self.least * 1e3:.2f} to {self.most * 1e3:.2f})"


def measure(work: Callable[[], Any], *, repeats: int) -> Seconds:
    """One run to warm up, then ``repeats`` timed ones."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return Seconds(statistics.median(times), min(times), max(times))


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of several values."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)

    @classmethod
    def of_ratios(cls, values: Sequence[float], others: Sequence[float]) -> Spread:
        """Of the ratios within each round."""
        return cls.of([value / other for value, other in zip(values, others, strict=True)])

    def percent(self, *, of: float = 0.0) -> str:
        """``+4.2% (+3.9 to +4.6)``: how far above ``of``."""
        low, middle, high = (100 * (value - of) for value in (self.lower, self.median, self.upper))
        return f"{middle:+.2f}% ({low:+.2f} to {high:+.2f})"

    def __str__(self) -> str:
        return f"{self.median:.4f} ({self.lower:.4f} to {self.upper:.4f})"


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": version("torch"),
    }


def answer(rows: Sequence[dict[str, Any]], *, title: str, as_json: bool) -> None:
    """A table for a person, or one JSON document."""
    if as_json:
        print(json.dumps({"title": title, "machine": machine(), "rows": list(rows)}))
        return
    print(f"{title}\n{', '.join(f'{key} {value}' for key, value in machine().items())}\n")
    columns = list(rows[0])
    cells = [columns, *([_text(row[column]) for column in columns] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
