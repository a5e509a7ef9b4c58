"""What a pipeline step holds in memory on every rank: fullbore and torch.distributed.pipelining, same order and layers.

    python benchmarks/memory.py [--json] [--ranks P ...] [--microbatches M ...] [--rows N]

One linear layer a stage, float32, boundary tensors of `rows` x 256 (1 MiB by default), 1F1B and interleaved 1F1B with
two stages a rank, p in 2, 4, m in 8, 32. Every tensor's storage is counted from the operation that makes it until it is
freed, also inside autograd and on other threads; `tensor_bytes.py` says how. The count starts before the system is
built, so buffers that live as long as it does are in it; the batch is not.

- ``peak``: the most bytes at once in the second step.
- ``tensors``: the most storages of a boundary's size at once: activations, gradients, receive buffers, what is being
  sent and what the layers themselves need (a weight has another size). ``kept``: those that are there between steps.

Exit code 1 if fullbore needs more than PyTorch anywhere.
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby, product
from typing import Any

from measure import answer
from memory_ranks import Footprint, MemoryCell

from fullbore.runtime.processes.launch import launch


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of a step.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--microbatches", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--rows", type=int, default=1024)
    options = parser.parse_args()
    cells = [
        MemoryCell(family, p, m, options.rows)
        for p, family, m in product(options.ranks, ("1f1b", "interleaved-1f1b"), options.microbatches)
    ]
    found: list[Footprint] = []
    for ranks, group in groupby(cells, key=lambda cell: cell.num_ranks):
        for one in launch("memory_ranks:measure_footprints", list(group), num_ranks=ranks, preload=["torch"]):
            found += one
    rows = [_row(cell, rank, found) for cell in cells for rank in range(cell.num_ranks)]
    answer(
        rows, title=f"bytes on each rank, boundary tensors of {4 * 256 * options.rows:,} bytes", as_json=options.json
    )
    if any(row["fullbore_peak"] > row["torch_peak"] for row in rows):
        sys.exit(1)


def _row(cell: MemoryCell, rank: int, found: list[Footprint]) -> dict[str, Any]:
    of = {one.system: one for one in found if one.cell == cell and one.rank == rank}
    ours, theirs = of["fullbore"], of["torch"]
    return {
        "schedule": cell.family,
        "p": cell.num_ranks,
        "m": cell.num_microbatches,
        "rank": rank,
        "fullbore_peak": ours.peak_bytes,
        "torch_peak": theirs.peak_bytes,
        "fullbore_of_torch": ours.peak_bytes / theirs.peak_bytes,
        "fullbore_tensors": ours.peak_boundary_tensors,
        "torch_tensors": theirs.peak_boundary_tensors,
        "fullbore_kept": ours.kept_boundary_tensors,
        "torch_kept": theirs.kept_boundary_tensors,
    }


if __name__ == "__main__":
    main()
