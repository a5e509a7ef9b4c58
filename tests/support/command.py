"""Run the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.command_server import CommandServer

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
    session: int
    """The command led a session of its own: see `processes_of`."""


def fullbore(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 100.0) -> Ran:
    """``fullbore ARGUMENTS`` from the project's root, without the time that its imports take."""
    return Ran(*_server().run(arguments, env={**os.environ, **(env or {})}, timeout_s=timeout_s))


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 100.0) -> Ran:
    """Any command from the project's root, started as a user does."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return Ran(process.returncode, out, err, process.pid)


@cache
def _server() -> CommandServer:
    return CommandServer(cwd=ROOT)


def processes_of(session: int) -> list[int]:
    """Processes of a session: what a command that led it has left behind, whatever groups they have made."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(path.parent.name))
    return found
