"""Real training steps on two ranks of one thread each: fullbore, its peers and one process, with the same weights.

    python benchmarks/throughput.py [--json] [--rounds N] [--tokens N] [--systems TEXT] [--small]

A decoder of 8 blocks, width 512, vocabulary 32,000, float32; 8 microbatches of one sample; forward, backward and SGD.
1F1B everywhere. The equal cut is embedding and 4 blocks | 4 blocks and head, in layers [5, 5]; the measured cut is what
fullbore makes of its own profile. Before anything is timed, three optimizer steps of every system must give the same
losses within 1e-5. Then every system runs one step a round, in an order that is drawn anew.

``to_best_equal``: step time over that of the best system at the equal cut (by its median), within each round; quartiles
in brackets. DeepSpeed is there if it is installed (`pip install fullbore[bench]`).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from decoder import DecoderShape
from measure import Spread, answer
from throughput_ranks import Throughput, measure_systems

from fullbore.runtime.launch import launch

_ALL = (
    "one process",
    "hand-written loop",
    "torch.distributed.pipelining",
    "DeepSpeed",
    "fullbore, equal cut",
    "fullbore, measured cut",
)
_TOLERANCE = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time of real training.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tokens", type=int, default=128, help="of each sample")
    parser.add_argument("--systems", default="", help="only those whose name contains one of these, split at ';'")
    parser.add_argument("--small", action="store_true", help="width 32, vocabulary 256: to see that it runs")
    options = parser.parse_args()
    shape = DecoderShape(8, 32, 256) if options.small else DecoderShape(8, 512, 32_000)
    names = [name for name in _ALL if any(text in name for text in options.systems.split(";"))]
    if "DeepSpeed" in names and importlib.util.find_spec("deepspeed") is None:
        print("DeepSpeed is not installed and left out", file=sys.stderr)
        names.remove("DeepSpeed")
    found = launch(
        f"throughput_ranks:{measure_systems.__name__}",
        *(shape, options.tokens, 8, options.rounds, names),
        num_ranks=2,
        preload=["torch"],
    )[0]
    _require_same_losses(found)
    answer(_rows(found), title=f"one optimizer step, {options.rounds} rounds", as_json=options.json)


def _require_same_losses(found: Sequence[Throughput]) -> None:
    reference = found[0]
    for row in found[1:]:
        for theirs, expected in zip(row.losses, reference.losses, strict=True):
            if abs(theirs - expected) > _TOLERANCE * abs(expected):
                raise SystemExit(
                    f"{row.system} has other losses than {reference.system}: {row.losses} and {reference.losses}"
                )


def _rows(found: Sequence[Throughput]) -> list[dict[str, Any]]:
    equal = [row for row in found if "measured" not in row.system and row.system != "one process"] or list(found)
    best = min(equal, key=lambda row: median(row.step_ns))
    return [
        {
            "system": row.system,
            "layers": " ".join(map(str, row.layers_per_stage)),
            "step_ms": median(row.step_ns) / 1e6,
            "fastest": min(row.step_ns) / 1e6,
            "slowest": max(row.step_ns) / 1e6,
            "to_best_equal": str(Spread.of_ratios(row.step_ns, best.step_ns)),
            "loss": row.losses[-1],
        }
        for row in found
    ]


if __name__ == "__main__":
    main()
