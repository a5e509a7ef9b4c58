"""Inject faults into real training runs, and see whether every rank ends in time and the right one is named.

    python benchmarks/faults_runtime.py [--json] [--only REGEX] [--at-once 2] [--timeout 5]

Each case is a `fullbore train` with processes, gloo and a tiny model; the fault comes out of the model's own code or
the data files. Right is: the command ends within its timeout (`Case.allowed_s`) with exit code 2, one sentence names
the rank, what it was doing and why, and no process is left. Exit code 1 if any case is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from fault_cases import CASES, MICROBATCHES, Case  # noqa: E402
from measure import answer  # noqa: E402

from tests.support.command import processes_of  # noqa: E402

_GIVE_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a user sees."""

    code: int | None
    """None where the command did not end and was killed."""

    ended_s: float
    """From the fault to the end of the command."""

    sentences: tuple[str, ...]
    """What fullbore said at last."""

    orphans: int
    printed: str


def run(case: Case, folder: Path, *, timeout_s: float) -> Ran:
    """Train with the fault."""
    name, value, reached = "FULLBORE_FAULT_RUN", uuid.uuid4().hex, folder / "reached"
    environment = {**os.environ, **_environment(case, folder, reached), name: value}
    started = time.time()
    with socket.create_server(("127.0.0.1", 0)) as taken, (folder / "stderr").open("w+") as said:
        processes = [
            subprocess.Popen(command, cwd=ROOT, env={**environment, **more}, stdout=subprocess.DEVNULL, stderr=said)
            for command, more in _commands(case, folder, taken.getsockname()[1], timeout_s)
        ]
        codes = {_code(process) for process in processes}
        ended = time.time()
        said.seek(0)
        printed = said.read()
    since = float(reached.read_text()) if reached.exists() else started
    sentences = tuple(line for line in printed.splitlines() if re.match(r"(\[rank\d+\]: ?)?fullbore: ", line))
    code = codes.pop() if len(codes) == 1 else None
    return Ran(code, ended - since, sentences, _left_behind(f"{name}={value}"), printed)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_GIVE_UP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def judge(case: Case, ran: Ran, *, timeout_s: float) -> dict[str, Any]:
    """A row of the table. One sentence names rank, action and cause; without a launcher of ours, one of several."""
    launched = case.started_by == "fullbore"
    spoken = ran.sentences if len(ran.sentences) == 1 or not launched else ()
    rank = "" if case.rank is None and not launched else r"rank \d+\b" if case.rank is None else rf"rank {case.rank}\b"
    named = [sentence for sentence in spoken if re.search(rf"(fullbore: |; ){rank}", sentence)]
    right = {
        "rank": bool(named),
        "action": any(re.search(case.action, sentence) for sentence in named),
        "cause": any(re.search(case.cause, sentence) for sentence in named),
    }
    in_time = ran.ended_s <= case.allowed_s(timeout_s)
    ok = all(right.values()) and in_time and not ran.orphans and ran.code == (1 if case.started_by == "torchrun" else 2)
    return {
        "fault": case.kind,
        "in": case.place,
        "on": case.where + ("" if launched else f", by {case.started_by}"),
        "ended s": round(ran.ended_s, 1),
        "exit code": ran.code,
        **{name: "right" if value else "WRONG" for name, value in right.items()},
        "orphans": ran.orphans,
        "ok": ok,
        "said": " | ".join(ran.sentences if launched else named or ran.sentences),
    }


def _environment(case: Case, folder: Path, reached: Path) -> dict[str, str]:
    data = folder / "tokens.bin"
    rank = 0 if case.rank is None else case.rank
    place = f"forward:{rank}:12" if case.kind in ("truncate", "overwrite") else f"{case.place}:{rank}:{case.call}"
    return {
        "FULLBORE_TEST_FAULT": f"{case.kind}@{place}",
        "FULLBORE_TEST_DATA": str(data),
        "FULLBORE_TEST_REACHED": str(reached),
        "OMP_NUM_THREADS": "1",
    }


def _commands(case: Case, folder: Path, taken_port: int, timeout_s: float) -> list[tuple[list[str], dict[str, str]]]:
    """What to start, side by side, each with more environment."""
    sets = (*_sets(case, folder), f"train.timeout_s={timeout_s}")
    fullbore = ["-m", "fullbore", "train", *(part for each in sets for part in ("--set", each))]
    if case.started_by == "fullbore":
        return [([sys.executable, *fullbore], {})]
    if case.started_by == "torchrun":
        num_processes = case.ranks + 1 if case.kind == "world" else case.ranks
        torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes))
        return [([sys.executable, "-m", *torchrun, *fullbore], {})]
    group = {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken_port)}
    return [([sys.executable, *fullbore], {**group, "RANK": str(rank)}) for rank in range(case.ranks)]


def _sets(case: Case, folder: Path) -> tuple[str, ...]:
    data = folder / ("pipe.jsonl" if case.kind == "fifo" else "tokens.bin")
    if case.kind == "fifo":
        os.mkfifo(data)
    else:
        np.random.default_rng(0).integers(0, 256, 60_000, dtype=np.uint16).tofile(data)
        data.with_suffix(".json").write_text('{"dtype": "uint16", "vocab_size": 256}')
    partition = [3] if case.ranks == 1 else [2, *[1] * (case.ranks - 2), 2]
    return (
        *("model.factory=tests.support.faulty:model", f"data.source={data}", "data.sequence_length=16"),
        *(f"pipeline.stages={case.ranks}", f"pipeline.partition={partition}", f"pipeline.microbatches={MICROBATCHES}"),
        *(f"train.run_dir={folder / 'run'}", "train.steps=4"),
        *("train.eval_every=0", "train.tensorboard=false", "train.device=cpu", *case.sets),
    )


def _left_behind(marker: str) -> int:
    """Processes of the run five seconds after its end; they are ended here. (The server that forked the ranks leaves by
    itself when the command is gone, and needs a moment to unload torch.)"""
    deadline = time.monotonic() + 5.0
    while (left := processes_of(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, 9)
    return len(left)


def _case(case: Case, *, timeout_s: float) -> tuple[dict[str, Any], Ran]:
    with tempfile.TemporaryDirectory() as folder:
        ran = run(case, Path(folder), timeout_s=timeout_s)
    return judge(case, ran, timeout_s=timeout_s), ran


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document, with what was said")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose KIND@PLACE:RANK/RANKS matches")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="runs side by side")
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="train.timeout_s; more on a busy machine"
    )
    given = parser.parse_args(arguments)
    chosen = [c for c in CASES if re.search(given.only, f"{c.kind}@{c.place}:{c.rank}/{c.ranks} {c.started_by}")]
    with ThreadPoolExecutor(given.at_once) as pool:
        judged = list(pool.map(partial(_case, timeout_s=given.timeout), chosen))
    rows = [row for row, _ in judged]
    shown = rows if given.json else [{k: v for k, v in row.items() if k not in ("said", "ok")} for row in rows]
    wrong = [(row, ran) for row, ran in judged if not row["ok"]]
    answer(shown, title=f"{len(rows)} injected faults, {len(wrong)} wrong", as_json=given.json)
    for row, ran in wrong:
        print(f"\n{row['fault']} in {row['in']} on {row['on']}:\n{ran.printed[-2000:]}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
