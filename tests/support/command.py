"""Run the command line in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

TINY_LLAMA = (
    *("--set", "model.config.num_hidden_layers=4", "--set", "model.config.hidden_size=32"),
    *("--set", "model.config.intermediate_size=64", "--set", "model.config.num_attention_heads=2"),
    *("--set", "model.config.num_key_value_heads=2", "--set", "data.sequence_length=16"),
    *("--set", "train.tensorboard=false", "--set", "train.device=cpu"),
)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    seconds: float


def fullbore(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 100.0) -> Ran:
    """``fullbore ARGUMENTS`` from the project's root."""
    return run([sys.executable, "-m", "fullbore", *arguments], env=env, timeout_s=timeout_s)


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 100.0) -> Ran:
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def processes_of(marker: str) -> list[int]:
    """Processes that carry ``marker`` in their environment: what a run has left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
