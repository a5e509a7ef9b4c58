"""What recording costs: steps of 5 ms actions, with every wait and action in spans and in the trace file, and without.

    python benchmarks/recording.py [--json] [--ranks P] [--microbatches M] [--rounds N]

Emulated devices with F = B = 5 ms under 1F1B, messages of 4 KiB. Both kinds of step run in turn in the same processes;
``recording`` is the recorded step over the other one of the same round, minus one, with quartiles in brackets.
"""

from __future__ import annotations

import argparse
import tempfile
from statistics import median

from emulation import Cell
from measure import Spread, answer

from fullbore.runtime.processes.launch import launch

_ACTION_NS = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="What recording adds to a step.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    cell = Cell("1f1b", options.ranks, options.microbatches, 4 << 10, 0.0, _ACTION_NS, _ACTION_NS)
    with tempfile.TemporaryDirectory() as folder:
        found = launch(
            "overhead_ranks:measure_recording", cell, options.rounds, folder, num_ranks=options.ranks, preload=["torch"]
        )[0]
    steps = {row.system: row.steps.step_ns for row in found}
    row = {
        "p": options.ranks,
        "m": options.microbatches,
        "actions_a_rank": 2 * options.microbatches,
        "recorded_ms": median(steps["recorded"]) / 1e6,
        "unrecorded_ms": median(steps["unrecorded"]) / 1e6,
        "recording": Spread.of_ratios(steps["recorded"], steps["unrecorded"]).percent(of=1.0),
    }
    answer([row], title=f"recording, {options.rounds} rounds", as_json=options.json)


if __name__ == "__main__":
    main()
