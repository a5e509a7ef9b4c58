"""Launching ranks on this machine, and ending them all when one fails.

Workers are forked from a server process that has imported torch once, so four ranks start in the time of one.
The parent imports no torch: it hands out the address of rank 0's store, watches every worker, and when one
fails it works out *which* failed first, ends the others and raises one error that names rank, action and cause.
Nothing outlives the parent: every worker watches it and leaves when it is gone.

Under torchrun or another launcher none of this runs; `fullbore.runtime.mesh` joins the group that is there.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from fullbore.errors import FullboreError, InputError, NeighborLost, RankFailed, TransferStalled
from fullbore.runtime.blame import blame
from fullbore.runtime.board import ProgressBoard

__all__ = ["Worker", "launch", "load_target"]

_GRACE_S = 1.5
"""How long the parent listens for other ranks' words before it decides who failed first."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a launched process knows about itself."""

    rank: int
    num_ranks: int
    board: Path
    pipe: Connection

    def exchange_port(self, port: int | None) -> int:
        """Rank 0 gives the port of its store; every rank gets it."""
        if self.rank == 0:
            self.pipe.send_bytes(pickle.dumps(("port", port)))
        answer: int = self.pipe.recv()
        return answer


@dataclass(slots=True)
class _Child:
    process: BaseProcess
    pipe: Connection
    state: Literal["running", "done", "failed", "gone"] = "running"
    result: Any = None
    error: FullboreError | None = None

    @property
    def running(self) -> bool:
        return self.state == "running"


def launch(target: str, *arguments: Any, num_ranks: int, preload: Sequence[str]) -> list[Any]:
    """Run ``target(worker, *arguments)`` in ``num_ranks`` processes and return their results by rank.

    ``target`` is ``package.module:function``, so that this process need not import what only workers need.
    ``preload`` names modules that the server imports before it forks. Arguments and results must be picklable.

    Raises:
        InputError: what every rank found wrong with the input, once.
        RankFailed: the first failure, once; by then every process has ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with tempfile.TemporaryDirectory(prefix="fullbore-") as folder:
        board_path = Path(folder) / "board"
        board = ProgressBoard(board_path, num_ranks=num_ranks)
        children: list[_Child] = []
        try:
            for rank in range(num_ranks):
                mine, theirs = context.Pipe()
                worker = Worker(rank, num_ranks, board_path, theirs)
                process = context.Process(target=_work, args=(worker, target, arguments), name=f"fullbore-rank-{rank}")
                process.start()
                theirs.close()
                children.append(_Child(process, mine))
            _supervise(children)
            failure = _first_failure(children, board)
            if failure is not None:
                raise failure
            return [child.result for child in children]
        finally:
            _end(children)
            board.close()


def load_target(target: str) -> Callable[..., Any]:
    """The function behind ``package.module:function``."""
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _work(worker: Worker, target: str, arguments: tuple[Any, ...]) -> None:
    """The body of a worker process."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # stdout is the command's answer; what user code prints here goes to stderr
    os.environ.update(
        RANK=str(worker.rank), WORLD_SIZE=str(worker.num_ranks), LOCAL_RANK=str(worker.rank), MASTER_ADDR="127.0.0.1"
    )
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        message: tuple[str, Any] = ("result", load_target(target)(worker, *arguments))
    except BaseException as error:
        message = ("error", _picklable(error, rank=worker.rank))
    # Plain pickle: multiprocessing's own would pass tensors as handles of memory that goes with this process.
    worker.pipe.send_bytes(pickle.dumps(message))
    worker.pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # A rank whose neighbour is gone can block in the communicator's destructor: leave without it.
    os._exit(0 if message[0] == "result" else 1)


def _picklable(error: BaseException, *, rank: int) -> FullboreError:
    """Errors cross the pipe as they are where they can; anything unplanned becomes a RankFailed with its place."""
    if not isinstance(error, FullboreError):
        error = RankFailed(f"rank {rank} failed outside the pipeline: {blame(error)}", rank=rank, action="")
    error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RankFailed(f"rank {rank} failed: {error}", rank=rank, action="")
    return error


def _supervise(children: list[_Child]) -> None:
    """Serve the workers until all have finished, or until shortly after the first failure."""
    deadline: float | None = None
    while running := [child for child in children if child.running]:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait([child.pipe for child in running], timeout=left)
        for child in running:
            if child.pipe in ready:
                _listen(child, children)
        now = time.monotonic()
        if deadline is None and any(child.state in ("failed", "gone") for child in children):
            deadline = now + _GRACE_S
        if deadline is not None and now >= deadline:
            return


def _listen(child: _Child, children: list[_Child]) -> None:
    """Take one word of a worker. A closed pipe without a result is a process that died."""
    try:
        kind, value = pickle.loads(child.pipe.recv_bytes())
    except (EOFError, OSError):
        child.state = "gone"
        return
    if kind == "port":
        for each in children:
            with suppress(OSError):  # one that is gone already is found by its closed pipe
                each.pipe.send(value)
    elif kind == "result":
        child.state, child.result = "done", value
    else:
        child.state, child.error = "failed", value


def _first_failure(children: list[_Child], board: ProgressBoard) -> FullboreError | None:
    """The cause among the symptoms: bad input, a rank that died, user code, a rank that never answered."""
    errors = [child.error for child in children if child.error is not None]
    for error in errors:
        if isinstance(error, InputError):
            return error
    for rank, child in enumerate(children):
        if child.state == "gone":
            child.process.join(timeout=1.0)
            doing = board.read(rank)
            return RankFailed(
                f"rank {rank} {_ending(child.process.exitcode)} in {doing.describe()}; the other ranks were ended",
                rank=rank,
                action=doing.doing,
            )
    for error in errors:
        if not isinstance(error, NeighborLost | TransferStalled):
            return error
    if not errors:
        return None
    return _stuck(children, board, symptom=errors[0]) or errors[0]


def _stuck(children: list[_Child], board: ProgressBoard, *, symptom: FullboreError) -> RankFailed | None:
    """Somebody waited in vain: name the rank that is still working, rather than waiting, the longest."""
    silent = [rank for rank, child in enumerate(children) if child.running and not board.read(rank).waiting]
    if not silent:
        return None
    rank = min(silent, key=lambda rank: board.read(rank).since_ns)
    doing = board.read(rank)
    since = (time.monotonic_ns() - doing.since_ns) / 1e9
    message = f"rank {rank} has been in {doing.describe()} for {since:.1f} s and was ended; {symptom}"
    return RankFailed(message, rank=rank, action=doing.doing)


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    return f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"


def _end(children: list[_Child]) -> None:
    """No process survives: ask, then kill. A stopped process can only be killed."""
    for child in children:
        if child.process.is_alive() and child.state != "done":
            child.process.terminate()
    deadline = time.monotonic() + 2.0
    for child in children:
        child.process.join(timeout=max(0.0, deadline - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
        child.pipe.close()


def _end_with_parent() -> None:
    """Leave when the launcher is gone, however it went. (A server's child keeps the server alive, so waiting for
    the server to go would be waiting for oneself.)"""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is launched by somebody"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="fullbore-parent-watch", daemon=True).start()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
