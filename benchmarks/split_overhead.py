"""Split backwards on emulated devices: fullbore's schedules and `auto` against PyTorch's, in the same rounds.

    python benchmarks/split_overhead.py [--json] [--quick] [--cells TEXT] [--rounds N] [--message-us N]

A rank waits F = I = W = 10 ms for each microbatch (5 ms on each of two stages), p in 4, 8; m in 16, 32; messages of
4 KiB; durations all equal or drawn within 50 %, the same work on every rank for every system (`split_emulation.py`).
PyTorch's modules have their input and their weight gradients on two branches of the graph, so that its I and its W each
take their time (`split_overhead_ranks.py`). Systems:

- fullbore's interleaved-1f1b, zb-v, dualpipe-v (two stages a rank) and zb-h1 (one), and PyTorch's own order of
  InterleavedZeroBubble, which fullbore has no schedule of its own like;
- fullbore's `auto`, made for these times and for messages of 150 us (gloo's between processes that have been idle),
  with the memory of 1F1B; *more memory*: with that of the PyTorch schedule that keeps the most;
- PyTorch's Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV;
- PyTorch's runtime with the CSV files of fullbore's zb-v and `auto`.

Columns:

- ``shares``: most activations that a rank keeps, in microbatches.
- ``simulated``: the makespan with the same durations and no communication, over m times 30 ms.
- ``to_ideal``: step time over m times 30 ms. ``over``: step time over the simulated makespan, minus one.
- ``to_peer``: step time relative to PyTorch's class of the same kind in the same round.
- ``to_best_torch``: relative to the PyTorch class that is fastest in the cell, by its median, in the same round.
- ``cpu_us_an_action``: as in `runtime_overhead.py`.

Quartiles of the rounds in brackets. All of it takes about 14 minutes on idle cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import groupby, product
from statistics import median
from typing import Any

from measure import Spread, answer
from split_emulation import FULLBORE, TORCH, SplitCell, contestants
from split_overhead_ranks import SplitMeasured, measure_split

from fullbore.runtime.processes.launch import launch


def main() -> None:
    parser = argparse.ArgumentParser(description="Split backwards: step time over ideal busy time.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="p = 4, m = 16, no jitter only")
    parser.add_argument("--cells", default="", help="only cells whose name contains one of these, split at '|'")
    parser.add_argument("--rounds", type=int, default=9, help="steps of every system in every cell")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--microbatches", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--action-ms", type=float, default=10.0, help="F, I and W of a rank, each")
    parser.add_argument("--message-us", type=float, default=150.0, help="what auto is told that a message takes")
    options = parser.parse_args()
    cells = [
        SplitCell(p, m, jitter, round(options.action_ms * 1e6))
        for p, jitter, m in product(options.ranks, (0.0, 0.5), options.microbatches)
    ]
    if options.quick:
        cells = [SplitCell(4, 16, 0.0, cells[0].action_ns)]
    cells = [cell for cell in cells if any(text in f"{cell};" for text in options.cells.split("|"))]
    if not cells:
        parser.error(f"no cell's name contains {options.cells!r}; names look like {SplitCell(4, 16, 0.5)}")
    measured: list[SplitMeasured] = []
    for ranks, group in groupby(cells, key=lambda cell: cell.num_ranks):
        some = [(cell, contestants(cell, message_ns=round(options.message_us * 1e3))) for cell in group]
        steps = sum(1.2 * cell.ideal_ns / 1e9 * len(systems) for cell, systems in some)
        print(f"p = {ranks}: {len(some)} cells, about {steps * options.rounds / 60:.1f} min", file=sys.stderr)
        start = time.perf_counter()
        target = f"split_overhead_ranks:{measure_split.__name__}"
        measured += launch(target, some, options.rounds, num_ranks=ranks, preload=["torch"])[0]
        print(f"p = {ranks}: {(time.perf_counter() - start) / 60:.1f} min", file=sys.stderr)
    answer(_rows(measured), title=f"split backwards, {options.rounds} rounds", as_json=options.json)
    if not options.json:
        print()
        answer(_summary(measured), title="over all cells", as_json=False)


def _rows(measured: Sequence[SplitMeasured]) -> list[dict[str, Any]]:
    rows = []
    for row in measured:
        peer, best = _peer(row, measured), _best_torch(row.cell, measured)
        ideal = [row.cell.ideal_ns] * len(row.steps.step_ns)
        actions = sum(map(len, row.contestant.schedule.orders))
        rows.append(
            {
                "p": row.cell.num_ranks,
                "m": row.cell.num_microbatches,
                "jitter": f"{row.cell.jitter:.0%}",
                "system": row.contestant.system,
                "order": row.contestant.order,
                "shares": float(row.contestant.shares),
                "simulated": round(Spread.of_ratios(row.steps.simulated_ns, ideal).median, 4),
                "to_ideal": str(Spread.of_ratios(row.steps.step_ns, ideal)),
                "over": Spread.of_ratios(row.steps.step_ns, row.steps.simulated_ns).percent(of=1.0),
                "to_peer": "" if peer is None else str(Spread.of_ratios(row.steps.step_ns, peer.steps.step_ns)),
                "to_best_torch": str(Spread.of_ratios(row.steps.step_ns, best.steps.step_ns)),
                "best_torch": best.contestant.order,
                "overslept": Spread.of_ratios(row.steps.overslept_ns, row.steps.simulated_ns).percent(),
                "cpu_us_an_action": median(row.steps.cpu_ns) / 1e3 / actions,
            }
        )
    return rows


def _summary(measured: Sequence[SplitMeasured]) -> list[dict[str, Any]]:
    """For each system and order: all pairs of all cells together, and the cell in which it does worst."""
    rows = []
    for name in dict.fromkeys(row.contestant.name for row in measured):
        some = [row for row in measured if row.contestant.name == name]
        if some[0].contestant.system == TORCH:
            continue
        row: dict[str, Any] = {"system": name, "cells": len(some)}
        for column, others in (
            ("peer", [_peer(one, measured) for one in some]),
            ("best_torch", [_best_torch(one.cell, measured) for one in some]),
        ):
            pairs = [(one, other) for one, other in zip(some, others, strict=True) if other is not None]
            if not pairs:
                row |= {f"to_{column}": "", f"worst_to_{column}": "", f"worst_cell_{column}": ""}
                continue
            each = [
                (Spread.of_ratios(one.steps.step_ns, other.steps.step_ns).median, str(one.cell)) for one, other in pairs
            ]
            ratios = [
                a / b for one, other in pairs for a, b in zip(one.steps.step_ns, other.steps.step_ns, strict=True)
            ]
            worst = max(each)
            row |= {
                f"to_{column}": str(Spread.of(ratios)),
                f"worst_to_{column}": round(worst[0], 4),
                f"worst_cell_{column}": worst[1],
            }
        rows.append(row)
    return rows


def _peer(row: SplitMeasured, measured: Sequence[SplitMeasured]) -> SplitMeasured | None:
    """PyTorch's class of the same kind; of an order that PyTorch reads from a CSV, that of fullbore's."""
    if row.contestant.system == TORCH:
        return None
    peers = {one.contestant.order: one.contestant.peer for one in measured if one.contestant.system == FULLBORE}
    peer = peers[row.contestant.order]
    return None if peer is None else _torch(row.cell, peer, measured)


def _torch(cell: SplitCell, order: str, measured: Sequence[SplitMeasured]) -> SplitMeasured:
    return next(
        one for one in measured if one.cell == cell and (one.contestant.system, one.contestant.order) == (TORCH, order)
    )


def _best_torch(cell: SplitCell, measured: Sequence[SplitMeasured]) -> SplitMeasured:
    theirs = [one for one in measured if one.cell == cell and one.contestant.system == TORCH]
    return min(theirs, key=lambda one: median(one.steps.step_ns))


if __name__ == "__main__":
    main()
