"""Starting the ranks of a command: our own workers on this machine, or the group that is already there."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from fullbore.errors import ConfigError, FullboreError
from fullbore.runtime.environment import from_environment
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.runtime.processes.failure import failure_of
from fullbore.runtime.processes.launch import Worker, launch, load_target
from fullbore.runtime.processes.verdict import is_symptom
from fullbore.session.notice import notice

__all__ = ["in_a_group", "run_ranks"]


def in_a_group() -> bool:
    """Has torchrun (or Ray, Slurm, ...) started this process as one of several?"""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_ranks(target: str, *arguments: Any, num_ranks: int, preload: Sequence[str]) -> Any:
    """Run ``target(worker, *arguments)`` on every rank; rank 0's result. ``target`` is ``package.module:function``.

    In a group that was there before this process is one rank, and gets its own result.

    Raises:
        ConfigError: the group has another size than the configuration, or the environment does not say where it is.
        RankFailed: this rank failed, or waited for one that did.
    """
    if not in_a_group():
        notice(f"starting {num_ranks} {'rank' if num_ranks == 1 else 'ranks'}")
        return launch(target, *arguments, num_ranks=num_ranks, preload=preload)[0]
    rank = _checked_rank(num_ranks)
    path = _shared_board()
    worker = Worker(rank, num_ranks, path, None)
    board = ProgressBoard(path, num_ranks=num_ranks)
    try:
        with redirect_stdout(sys.stderr):
            return load_target(target)(worker, *arguments)
    except Exception as error:
        raise _told(failure_of(error, rank=rank, doing=board.read(rank)), board, worker) from error
    finally:
        path.unlink(missing_ok=True)
        board.close()


def _checked_rank(num_ranks: int) -> int:
    present, rank = from_environment("WORLD_SIZE"), from_environment("RANK")
    if present != num_ranks:
        raise ConfigError(
            f"the configuration needs {num_ranks} processes (pipeline.stages * mesh axes); torchrun started "
            f"{present}; use --nproc-per-node {num_ranks} or change pipeline.stages"
        )
    if rank >= present:
        raise ConfigError(f"RANK counts from 0 to WORLD_SIZE - 1 (RANK={rank}, WORLD_SIZE={present}); torchrun sets it")
    if present > 1 and "MASTER_ADDR" not in os.environ:
        raise ConfigError("RANK and WORLD_SIZE are set but MASTER_ADDR is not; start with torchrun, or unset them")
    if present > 1:
        from_environment("MASTER_PORT")
    return rank


def _shared_board() -> Path:
    """One file for the ranks that one launcher has started on this machine: same parent, same port, same attempt."""
    attempt = "-".join(os.environ.get(name, "0") for name in ("MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return Path(tempfile.gettempdir()) / f"fullbore-{os.getuid()}-{os.getppid()}-{attempt}"


def _told(failure: FullboreError, board: ProgressBoard, worker: Worker) -> FullboreError:
    """No parent listens here. So a rank that waited in vain adds which rank of this machine works the longest."""
    if not is_symptom(failure):
        return failure
    others = {rank: board.read(rank) for rank in range(worker.num_ranks) if rank != worker.rank}
    working = {rank: entry for rank, entry in others.items() if entry.since_ns and not entry.waiting}
    if working:
        rank, entry = min(working.items(), key=lambda item: item[1].since_ns)
        age_s = (time.monotonic_ns() - entry.since_ns) / 1e9
        failure.args = (f"{failure}; rank {rank} has been {entry.has_been()} for {age_s:.1f} s", *failure.args[1:])
    return failure
