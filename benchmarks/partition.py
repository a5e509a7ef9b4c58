"""How good and how fast cuts are: rules against the optimum, and the least bottleneck against the least makespan.

    python benchmarks/partition.py [--json] [--vectors N] [--models N] [--repeats N]

1. Bottleneck of several rules on random cost vectors (8 to 128 layers, 2 to 16 stages), relative to the optimum. The
   optimum is checked by trying all cuts where there are at most 20,000, and by bisecting the bottleneck otherwise.
2. Simulated makespan of the least-bottleneck cut and of the searched one, relative to the best of all cuts.
3. Several chunks a rank: Llama-3-70B over 8 ranks with 5 chunks each, in units of one block's forward.
4. Time to find a cut.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Any

import numpy as np
from measure import answer, machine, measure
from rules import block_partition, equal_counts, greedy_thresholds, least_gap, sums

from fullbore.costs.layer import LayerCost
from fullbore.partition.best import best_partition
from fullbore.partition.judge import Judge
from fullbore.partition.min_max import min_max
from fullbore.schedules.registry import get

_RULES: dict[str, Callable[[Sequence[int], int], tuple[int, ...]]] = {
    "fullbore, least bottleneck": lambda weights, stages: min_max(weights, num_stages=stages),
    "least gap, true costs": least_gap,
    "equal counts": equal_counts,
    "greedy thresholds": greedy_thresholds,
    "block partition": block_partition,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality and speed of cuts.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--vectors", type=int, default=400)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    tables = {
        "bottleneck over the optimum": bottlenecks(options.vectors),
        "simulated makespan over the best of all cuts": makespans(options.models),
        "Llama-3-70B, p = 8, v = 5: makespan in forwards of one block": chunked(),
        "time to find a cut": speeds(options.repeats),
    }
    if options.json:
        print(json.dumps({"machine": machine(), "tables": tables}))
        return
    for title, rows in tables.items():
        answer(rows, title=title, as_json=False)
        print()


def weights_of(random: Random) -> list[int]:
    """Alternately a transformer (equal blocks, light embedding, heavy head), a hybrid and an irregular chain."""
    count = random.randint(8, 128)
    match random.randrange(3):
        case 0:
            return [random.randint(1, 20), *[100] * (count - 2), random.randint(100, 500)]
        case 1:
            return [random.choice([100, 100, 200]) + random.randint(-5, 5) for _ in range(count)]
        case _:
            return [random.randint(1, 100) for _ in range(count)]


def bottlenecks(count: int) -> list[dict[str, Any]]:
    random, over, empty = Random(1), {name: [] for name in _RULES}, dict.fromkeys(_RULES, 0)
    tried = 0
    for _ in range(count):
        weights = weights_of(random)
        stages = random.randint(2, min(16, len(weights)))
        all_cuts = math.comb(len(weights) - 1, stages - 1) <= 20_000
        best = least_by_trying(weights, stages) if all_cuts else least_by_bisection(weights, stages)
        tried += all_cuts
        for name, rule in _RULES.items():
            counts = rule(weights, stages)
            over[name].append(max(sums(weights, counts)) / best - 1)
            empty[name] += min(counts) < 1
        assert over["fullbore, least bottleneck"][-1] == 0, "the exact cut is exact"
    return [
        {
            "rule": name,
            "vectors": count,
            "tried_all_cuts": tried,
            "optimal": f"{sum(value == 0 for value in over[name]) / count:.0%}",
            "mean": f"+{statistics.mean(over[name]):.1%}",
            "p95": f"+{sorted(over[name])[int(0.95 * (count - 1))]:.1%}",
            "worst": f"+{max(over[name]):.0%}",
            "with_empty_stages": empty[name],
        }
        for name in _RULES
    ]


def least_by_trying(weights: Sequence[int], stages: int) -> int:
    prefix = np.cumsum([0, *weights])
    edges = np.array([(0, *cut, len(weights)) for cut in combinations(range(1, len(weights)), stages - 1)])
    return int(np.diff(prefix[edges], axis=1).max(axis=1).min())


def least_by_bisection(weights: Sequence[int], stages: int) -> int:
    """The least bound within which filling stage after stage is enough."""
    low, high = max(weights), sum(weights)
    while low < high:
        bound, used, held = (low + high) // 2, 1, 0
        for weight in weights:
            used, held = (used + 1, weight) if held + weight > bound else (used, held + weight)
        low, high = (low, bound) if used <= stages else (bound + 1, high)
    return low


def model(random: Random, count: int) -> list[LayerCost]:
    """Blocks within 30 % of each other, a light embedding and a head of one to three blocks."""
    scales = [random.uniform(0.7, 1.3) for _ in range(count)]
    scales[0], scales[-1] = 0.3, random.uniform(1, 3)
    return [
        LayerCost(f"layer{i}", round(1e6 * s), round(1e6 * s), round(1e6 * s * random.uniform(0.6, 1.1)))
        for i, s in enumerate(scales)
    ]


def makespans(count: int) -> list[dict[str, Any]]:
    rows = []
    for name, p, v, layers in (("1f1b", 4, 1, 19), ("gpipe", 4, 1, 19), ("interleaved-1f1b", 2, 2, 16)):
        for m in (p, 2 * p, 8 * p):
            schedule = get(name).build(p, num_microbatches=m, num_chunks=v if v > 1 else None)
            least, searched = [], []
            for seed in range(count):
                costs = model(Random(seed), layers)
                cuts = [
                    [end - first for first, end in pairwise((0, *cut, layers))]
                    for cut in combinations(range(1, layers), p * v - 1)
                ]
                judge = Judge(costs, schedule=schedule)
                best = min(score.makespan for score in judge.scores(np.array(cuts)))
                plain = min_max([layer.time_ns for layer in costs], num_stages=p * v)
                found = best_partition(costs, schedule=schedule).layers_per_stage
                first, second = judge.scores(np.array([plain, found]))
                least.append(first.makespan / best - 1)
                searched.append(second.makespan / best - 1)
            rows.append(
                {
                    "schedule": name,
                    "p": p,
                    "v": v,
                    "m": m,
                    "layers": layers,
                    "models": count,
                    "least_bottleneck_mean": f"+{statistics.mean(least):.2%}",
                    "least_bottleneck_worst": f"+{max(least):.1%}",
                    "searched_mean": f"+{statistics.mean(searched):.2%}",
                    "searched_worst": f"+{max(searched):.1%}",
                }
            )
    return rows


def chunked() -> list[dict[str, Any]]:
    """The published layout and ten blocks everywhere, against the cut that is found."""
    published, ten, rows = [3, *[2] * 34, 3, 2, 2, 2, 2], [3, *[2] * 38, 3], []
    for head in (1.0, 1.23):
        blocks = [LayerCost(f"block{i}", 1000, 1000, 1000) for i in range(80)]
        last = round(1000 * head)
        layers = [LayerCost("embed", 0, 0, 20), *blocks, LayerCost("head", last, last, last)]
        for m in (8, 16, 32, 64):
            schedule = get("interleaved-1f1b").build(8, num_microbatches=m, num_chunks=5)
            found = best_partition(layers, schedule=schedule).layers_per_stage
            even, theirs, mine = Judge(layers, schedule=schedule).scores(np.array([ten, published, found]))
            held = [sum(found[rank::8]) for rank in range(8)]
            rows.append(
                {
                    "head_in_blocks": head,
                    "m": m,
                    "ten_everywhere": even.makespan / 1000,
                    "published_layout": theirs.makespan / 1000,
                    "found": mine.makespan / 1000,
                    "blocks_a_rank": " ".join(map(str, [held[0] - 1, *held[1:7], held[7] - 1])),
                }
            )
    return rows


def speeds(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for name, layers, p, v, m in (
        ("1f1b", 34, 4, 1, 16),
        ("1f1b", 130, 16, 1, 32),
        ("1f1b", 130, 16, 1, 64),
        ("1f1b", 130, 16, 1, 128),
        ("interleaved-1f1b", 82, 8, 5, 32),
        ("1f1b", 130, 64, 1, 512),
    ):
        schedule = get(name).build(p, num_microbatches=m, num_chunks=v if v > 1 else None)
        costs = model(Random(7), layers)
        weights = [layer.time_ns for layer in costs]
        plain = measure(lambda w=weights, n=p * v: min_max(w, num_stages=n), repeats=repeats)
        whole = measure(lambda c=costs, s=schedule: best_partition(c, schedule=s), repeats=repeats)
        reason = best_partition(costs, schedule=schedule).reason
        rows.append(
            {
                "schedule": name,
                "layers": layers,
                "p": p,
                "v": v,
                "m": m,
                "least_bottleneck_ms": plain.median * 1e3,
                "with_search_ms": whole.median * 1e3,
                "fastest": whole.least * 1e3,
                "slowest": whole.most * 1e3,
                "searched": "no" if "too many" in reason else "yes",
            }
        )
    return rows


if __name__ == "__main__":
    main()
