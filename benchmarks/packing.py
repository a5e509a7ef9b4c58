"""What uneven documents cost a pipeline, and how much of it cost-balanced packing gets back.

    python benchmarks/packing.py [--json] [--batches N] [--documents N] [--length N] [--small]

The docstrings of the standard library, as bytes: real lengths, cut at 1,024. A step has the same documents in every
grouping, and the same loss:

    padded     in the order they come in, filled up to the longest of the microbatch
    in order   the same groups, packed: one row without padding, position ids start again
    balanced   packed, grouped by `fullbore.data.packing.pack`
    even       what nobody can have: the same tokens cut into rows of exactly one length, through the documents

``lost`` is in order over even, what unevenness costs, and ``left`` is balanced over even. ``recovered`` is the part of
the loss that balanced does not have: of the sums over all batches, and as quartiles over single ones.

Real steps on two ranks of one thread each: a Llama of 4 blocks of width 128 over bytes, 1F1B, forward and backward. One
batch after the other, each grouping of it twice in an order that is drawn anew, and the faster one counts; quartiles
over batches in brackets. Then 1F1B simulated over as many batches, with equal stages and times that go with the tokens
(forward 1, backward 2).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from docstrings import docstrings, order_of
from emulation import Simulated
from measure import Spread, answer
from packing_ranks import GROUPINGS, Grouped, Sizes, even_rows, measure_groupings

from fullbore.ir.action import Compute, Kind
from fullbore.runtime.processes.launch import launch
from fullbore.schedules.registry import get

_SIMULATED = ((2, 8), (4, 8), (4, 16), (8, 16), (8, 32))
_NS_PER_TOKEN = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time lost to uneven documents, and recovered by packing.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--documents", type=int, default=4, help="in a microbatch, on average")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the longest piece of a document")
    parser.add_argument("--small", action="store_true", help="width 16: to see that it runs")
    options = parser.parse_args()
    documents = docstrings()
    sizes = Sizes(8 * options.documents, 8, options.length, blocks=4, width=16 if options.small else 128)
    real = launch(
        f"packing_ranks:{measure_groupings.__name__}",
        *(documents, sizes, options.batches),
        num_ranks=2,
        preload=["torch", "transformers.models.llama.modeling_llama"],
    )[0]
    rows = [_row("real", 2, 8, _times(real), positions={row.grouping: row.positions for row in real})]
    for ranks, microbatches in _SIMULATED:
        positions = _positions(documents, options, microbatches)
        times = {name: [_simulated(one, ranks) for one in batches] for name, batches in positions.items()}
        rows.append(_row("simulated", ranks, microbatches, times, positions=positions))
    title = f"{len(documents)} docstrings, {options.documents} a microbatch, {options.batches} batches"
    answer(rows, title=title, as_json=options.json)


def _times(real: Sequence[Grouped]) -> dict[str, list[int]]:
    return {row.grouping: row.step_ns for row in real}


def _positions(documents: list[bytes], options: argparse.Namespace, microbatches: int) -> dict[str, list[list[int]]]:
    """Of every grouping and batch: the positions of each microbatch."""
    found: dict[str, list[list[int]]] = {name: [] for name in GROUPINGS}
    count = microbatches * options.documents
    orders = {n: order_of(documents, sequence_length=options.length, grouping=n) for n in GROUPINGS[:3]}
    for index in range(options.batches):
        rows = {
            name: order.microbatches(index * count, count=count, num_microbatches=microbatches)
            for name, order in orders.items()
        }
        for name, batch in {**rows, "even": even_rows(rows["packed"])}.items():
            found[name].append([one.input_ids.size for one in batch])
    return found


def _simulated(positions: Sequence[int], ranks: int) -> int:
    simulated = Simulated(get("1f1b").build(ranks, num_microbatches=len(positions)))
    share = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
    durations: dict[Compute, int] = {
        action: positions[action.microbatch] * share[action.kind] * _NS_PER_TOKEN // ranks
        for order in simulated.schedule.orders
        for action in order
    }
    return simulated.makespan_ns(durations)


def _row(
    kind: str,
    ranks: int,
    microbatches: int,
    times: Mapping[str, Sequence[int]],
    *,
    positions: Mapping[str, Sequence[Sequence[int]]],
) -> dict[str, Any]:
    plain, balanced, even = (times[name] for name in ("packed", "balanced", "even"))
    recovered = [(a - b) / (a - c) for a, b, c in zip(plain, balanced, even, strict=True) if a > c]
    lost = sum(plain) - sum(even)
    return {
        "step": kind,
        "p": ranks,
        "m": microbatches,
        **{f"{_WORDS[name]}_ms": median(times[name]) / 1e6 for name in GROUPINGS},
        "evenness": f"{_evenness(positions['packed']):.2f} to {_evenness(positions['balanced']):.3f}",
        "padded_over_even": Spread.of_ratios(times["padded"], even).percent(of=1),
        "lost": Spread.of_ratios(plain, even).percent(of=1),
        "left": Spread.of_ratios(balanced, even).percent(of=1),
        "recovered_of_all": f"{100 * (sum(plain) - sum(balanced)) / lost:.1f}%" if lost > 0 else "nothing lost",
        "recovered": Spread.of(recovered or [0.0]).percent(),
    }


_WORDS = {"padded": "padded", "packed": "in_order", "balanced": "balanced", "even": "even"}


def _evenness(batches: Sequence[Sequence[int]]) -> float:
    """Mean over batches of mean tokens over most tokens of a microbatch."""
    return mean(sum(one) / len(one) / max(one) for one in batches)


if __name__ == "__main__":
    main()
