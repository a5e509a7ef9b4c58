"""Real training steps on two ranks of one thread each: fullbore, its peers and one process, with the same weights.

    python benchmarks/throughput.py [--json] [--rounds N] [--tokens N] [--systems TEXT] [--small]
    python benchmarks/throughput.py --part schedules [--json] [--rounds N] [--tokens N] [--microbatches M ...] [--small]

A decoder of 8 blocks, width 512, vocabulary 32,000, float32; 8 microbatches of one sample; forward, backward and SGD.
1F1B everywhere. The equal cut is embedding and 4 blocks | 4 blocks and head, in layers [5, 5]; the measured cut is what
fullbore makes of its own profile. Before anything is timed, three optimizer steps of every system must give the same
losses within 1e-5. Then every system runs one step a round, in an order that is drawn anew.

``to_best_equal``: step time over that of the best system at the equal cut (by its median), within each round; quartiles
in brackets. DeepSpeed is there if it is installed (`pip install fullbore[bench]`).

``--part schedules`` compares schedules of fullbore on the same decoder with 4 and 8 microbatches: 1f1b, zb-h1, zb-v and
`auto`, made for the stage times that a run has measured (`gain_ranks.py`), all with the memory of 1F1B. 1F1B gains
nothing by definition; of the others:

- ``predicted_ms``: what the simulation saves of 1F1B's makespan for a step. ``realised_ms``: what a step saves, the
  optimizer's part included, paired in each round; quartiles in brackets.
- ``realised_part``: the second over the first, by the medians. The target is 75 % to 125 %.
- ``seen_ms``: what the simulation saves if each schedule's stages take what they took in its own timed steps. Where
  this differs from ``predicted_ms``, actions took another time than planned; where ``realised_ms`` differs from this,
  waiting did.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from decoder import DecoderShape
from gain_ranks import Gain, measure_gains
from measure import Spread, answer
from throughput_ranks import Throughput, measure_systems

from fullbore.runtime.processes.launch import launch

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
    parser.add_argument("--part", choices=["systems", "schedules"], default="systems")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tokens", type=int, default=128, help="of each sample")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8], help="of the part schedules")
    parser.add_argument("--systems", default="", help="only those whose name contains one of these, split at ';'")
    parser.add_argument("--small", action="store_true", help="width 32, vocabulary 256: to see that it runs")
    options = parser.parse_args()
    shape = DecoderShape(8, 32, 256) if options.small else DecoderShape(8, 512, 32_000)
    if options.part == "schedules":
        gains: list[Gain] = launch(
            f"gain_ranks:{measure_gains.__name__}",
            *(shape, options.tokens, options.microbatches, options.rounds),
            num_ranks=2,
            preload=["torch"],
        )[0]
        for m in options.microbatches:
            _require_same_losses([(one.schedule, one.losses) for one in gains if one.num_microbatches == m])
        answer(_gain_rows(gains), title=f"schedules, {options.rounds} rounds", as_json=options.json)
        return
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
    _require_same_losses([(row.system, row.losses) for row in found])
    answer(_rows(found), title=f"one optimizer step, {options.rounds} rounds", as_json=options.json)


def _require_same_losses(found: Sequence[tuple[str, Sequence[float]]]) -> None:
    first, reference = found[0]
    for name, losses in found[1:]:
        for theirs, expected in zip(losses, reference, strict=True):
            if abs(theirs - expected) > _TOLERANCE * abs(expected):
                raise SystemExit(f"{name} has other losses than {first}: {losses} and {reference}")


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


def _gain_rows(found: Sequence[Gain]) -> list[dict[str, Any]]:
    rows = []
    for row in found:
        plain = next(one for one in found if (one.num_microbatches, one.schedule) == (row.num_microbatches, "1f1b"))
        saved = Spread.of([before - after for before, after in zip(plain.step_ns, row.step_ns, strict=True)])
        predicted, step = plain.predicted_ns - row.predicted_ns, median(plain.step_ns)
        rows.append(
            {
                "m": row.num_microbatches,
                "schedule": row.schedule,
                "stages": row.placement,
                "layers": " ".join(map(str, row.layers_per_stage)),
                "simulated_ms": row.predicted_ns / 1e6,
                "step_ms": median(row.step_ns) / 1e6,
                "to_1f1b": str(Spread.of_ratios(row.step_ns, plain.step_ns)),
                "predicted_ms": predicted / 1e6,
                "predicted": f"{predicted / step:.1%}",
                "realised_ms": f"{saved.median / 1e6:.1f} ({saved.lower / 1e6:.1f} to {saved.upper / 1e6:.1f})",
                "realised_part": f"{saved.median / predicted:.0%}" if predicted > 0 else "",
                "seen_ms": (plain.seen_ns - row.seen_ns) / 1e6,
                "loss": row.losses[-1],
            }
        )
    return rows


if __name__ == "__main__":
    main()
