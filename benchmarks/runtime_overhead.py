"""What a runtime adds to a step: emulated devices under fullbore and under torch.distributed.pipelining.

    python benchmarks/runtime_overhead.py [--json] [--quick] [--cells TEXT] [--rounds N]

Every device waits F = 10 ms and B = 20 ms for each microbatch (two stages a rank: half of it each). The same order on
both sides: 1F1B and interleaved 1F1B with two stages a rank. Further, fullbore's 1F1B with one and two extra warm-up
forwards for every rank downstream. p in 2, 4, 8; m in 8, 32; messages of 4 KiB and 4 MiB; durations all equal or drawn
within 50 % (the same draws for every system). See `emulation.py` for the waits and `overhead_ranks.py` for a step.

- ``over``: step time over the makespan of the same order with the same durations and no communication, minus one.
  (Extra warm-up changes the order; its makespan is simulated too.)
- ``to_torch``: step time relative to PyTorch's in the same round.
- ``of_torch_overhead``: what of PyTorch's time over *its* makespan is left, by the medians.
- ``overslept``: what the waits themselves took too long, a rank's most, in the same unit. It bounds what is left.
- ``cpu_us_an_action``: work of the processors, over all threads of all ranks, for each action. Where there are more
  ranks than cores and all act at the same instant, they queue for it.

Quartiles of the rounds in brackets. The processes are not pinned and keep their priority: gloo receives on threads of
its own, and a compute thread that outranks them makes every message late.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby, product
from statistics import median
from typing import Any

from emulation import Cell
from measure import Spread, answer
from overhead_ranks import Measured

from fullbore.runtime.processes.launch import launch

_KIB, _MIB = 1 << 10, 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time over the simulated makespan.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="p = 4 and m = 8 only")
    parser.add_argument("--cells", default="", help="only cells whose name contains one of these, split at '|'")
    parser.add_argument("--rounds", type=int, default=9, help="steps of every system in every cell")
    options = parser.parse_args()
    cells = [cell for cell in _cells(quick=options.quick) if _wanted(cell, options.cells)]
    if not cells:
        parser.error(f"no cell's name contains {options.cells!r}; names look like {_cells(quick=False)[0]}")
    measured: list[Measured] = []
    for ranks, group in groupby(cells, key=lambda cell: cell.num_ranks):
        some = list(group)
        print(f"p = {ranks}: {len(some)} cells", file=sys.stderr)
        target = "overhead_ranks:measure_cells"
        measured += launch(target, some, options.rounds, num_ranks=ranks, preload=["torch"])[0]
    rows = _rows(measured)
    answer(rows, title=f"step time over the simulated makespan, {options.rounds} rounds", as_json=options.json)
    if not options.json:
        print()
        answer(_summary(measured), title="over all cells", as_json=False)


def _cells(*, quick: bool) -> list[Cell]:
    ranks, microbatches = ((4,), (8,)) if quick else ((2, 4, 8), (8, 32))
    families = ("1f1b", "interleaved-1f1b")
    sizes, jitters = (4 * _KIB, 4 * _MIB), (0.0, 0.5)
    return [
        Cell(family, p, m, size, jitter)
        for p, family, m, size, jitter in product(ranks, families, microbatches, sizes, jitters)
    ]


def _wanted(cell: Cell, texts: str) -> bool:
    return any(text in f"{cell};" for text in texts.split("|"))


def _rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    rows = []
    for row in measured:
        torch = _torch_of(row, measured)
        rows.append(
            {
                "schedule": row.cell.family,
                "p": row.cell.num_ranks,
                "m": row.cell.num_microbatches,
                "KiB": row.cell.boundary_bytes >> 10,
                "jitter": f"{row.cell.jitter:.0%}",
                "system": row.system,
                "simulated_ms": median(row.steps.simulated_ns) / 1e6,
                "step_ms": median(row.steps.step_ns) / 1e6,
                "over": _over(row).percent(of=1.0),
                "to_torch": str(Spread.of_ratios(row.steps.step_ns, torch.steps.step_ns)),
                "of_torch_overhead": f"{(_over(row).median - 1) / (_over(torch).median - 1):.0%}",
                "overslept": Spread.of_ratios(row.steps.overslept_ns, row.steps.simulated_ns).percent(),
                "cpu_us_an_action": median(row.steps.cpu_ns) / 1e3 / _actions(row.cell),
            }
        )
    return rows


def _summary(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """For each schedule and system: all pairs of all cells together, and the cell in which it does worst."""
    rows = []
    for family, system in sorted({(row.cell.family, row.system) for row in measured}):
        some = [row for row in measured if (row.cell.family, row.system) == (family, system)]
        pairs = [(row, _torch_of(row, measured)) for row in some]
        ratios = [
            ours / theirs
            for row, torch in pairs
            for ours, theirs in zip(row.steps.step_ns, torch.steps.step_ns, strict=True)
        ]
        worst, spread = max(
            ((row, Spread.of_ratios(row.steps.step_ns, torch.steps.step_ns)) for row, torch in pairs),
            key=lambda found: found[1].median,
        )
        rows.append(
            {
                "schedule": family,
                "system": system,
                "cells": len(some),
                "to_torch": str(Spread.of(ratios)),
                "over_median": f"{median(_over(row).median for row in some) - 1:.2%}",
                "of_torch_overhead": f"{_part(pairs):.0%}",
                "worst_cell": str(worst.cell),
                "worst_to_torch": str(spread),
            }
        )
    return rows


def _part(pairs: Sequence[tuple[Measured, Measured]]) -> float:
    """The median over cells of this system's overhead as a part of PyTorch's."""
    return median((_over(row).median - 1) / (_over(torch).median - 1) for row, torch in pairs)


def _actions(cell: Cell) -> int:
    return 2 * cell.num_ranks * cell.num_chunks * cell.num_microbatches


def _torch_of(row: Measured, measured: Sequence[Measured]) -> Measured:
    return next(other for other in measured if other.cell == row.cell and other.system == "torch")


def _over(row: Measured) -> Spread:
    return Spread.of_ratios(row.steps.step_ns, row.steps.simulated_ns)


if __name__ == "__main__":
    main()
