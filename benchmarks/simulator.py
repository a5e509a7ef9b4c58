"""How fast a schedule is simulated: actions a second, exact and compiled.

    python benchmarks/simulator.py [--json] [--repeats N] [--ranks P] [--microbatches M]

For each schedule: compiling it; then, from the compiled schedule, makespan and peaks (times and bytes of every rank),
the whole timeline in columns, and many sets of costs side by side. The exact simulator, which returns spans, is
measured beside them. ``_least`` is the slowest of the repeats. Costs and links are uneven, so that nothing is equal by
accident.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from measure import answer, measure

from fullbore.costs.links import Link
from fullbore.costs.memory import StageMemory
from fullbore.costs.stage import StageCost
from fullbore.ir.action import Kind
from fullbore.schedules.registry import get
from fullbore.simulate.columnar import columnar
from fullbore.simulate.compiled import compile_schedule
from fullbore.simulate.engine import simulate
from fullbore.simulate.evaluate import Evaluator
from fullbore.simulate.sweep import makespans

_SETS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the simulator.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=512)
    options = parser.parse_args()
    p, m = options.ranks, options.microbatches
    sizes = [
        ("gpipe", p, m, None),
        ("1f1b", p, m, None),
        ("interleaved-1f1b", p, m, 2),
        ("1f1b", min(p, 8), min(m, 64), None),
        ("1f1b", min(p, 2), min(m, 512), None),
    ]
    rows = [_row(*size, repeats=options.repeats) for size in sizes]
    answer(rows, title="simulator: actions a second, median of repeats", as_json=options.json)


def _row(name: str, p: int, m: int, v: int | None, *, repeats: int) -> dict[str, Any]:
    schedule = get(name).build(p, num_microbatches=m, num_chunks=v)
    stages = schedule.num_stages
    costs = [StageCost(900_000 + 7919 * (i % 13), 1_000_000 + 104_729 * (i % 5), 800_000 + i) for i in range(stages)]
    links = [Link(10_000 + 997 * (i % 7), bytes_per_s=10**11) for i in range(stages - 1)]
    memory = [StageMemory(10**9 + i, 10**7 + i) for i in range(stages)]
    compiled = compile_schedule(schedule)
    evaluator = Evaluator(compiled)
    table = np.array([[cost.of(kind) for cost in costs for kind in Kind]] * _SETS).T
    delays = np.zeros((stages, _SETS), np.int64)
    given = {"costs": costs, "links": links, "message_bytes": 1 << 20}
    exact = simulate(schedule, **given)
    fast = columnar(compiled, **given)
    assert fast.makespan_ns == exact.compute_end_ns == evaluator.evaluate(**given).makespan, "both simulations agree"
    count = compiled.num_actions
    compiling = measure(lambda: Evaluator(compile_schedule(schedule)), repeats=repeats)
    peaks = measure(lambda: evaluator.evaluate(**given, memory=memory), repeats=repeats)
    columns = measure(lambda: columnar(compiled, **given), repeats=repeats)
    together = measure(lambda: makespans(compiled, durations=table, delays=delays), repeats=repeats)
    spans = measure(lambda: simulate(schedule, **given), repeats=max(1, repeats // 3))
    return {
        "schedule": name,
        "p": p,
        "m": m,
        "v": v or 1,
        "actions": count,
        "levels": len(compiled.level_edges) - 1,
        "compile_ms": compiling.median * 1e3,
        "makespan_per_s": count / peaks.median,
        "makespan_least": count / peaks.most,
        "columns_per_s": count / columns.median,
        "columns_least": count / columns.most,
        f"sets{_SETS}_per_s": count * _SETS / together.median,
        "spans_per_s": count / spans.median,
    }


if __name__ == "__main__":
    main()
