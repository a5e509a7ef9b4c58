"""Launching ranks on this machine, and ending them all when one fails.

Workers are forked from a server process that has imported torch once, so four ranks start in the time of one.
The parent imports no torch: it hands out the address of rank 0's store, and watches every worker and what it says on
the board. When one fails or stands still, the parent works out which was first
(`fullbore.runtime.processes.verdict`), ends the others and raises one error that names rank, action and cause. Nothing
outlives the parent: every worker watches it and leaves when it is gone. Each leads a process group of its own, so that
what user code has started goes with it.

Under torchrun or another launcher none of this runs; `fullbore.runtime.mesh` joins the group that is there.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from fullbore.errors import InputError
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.runtime.processes.child import Child
from fullbore.runtime.processes.evidence import keep_stack, oom_kills
from fullbore.runtime.processes.failure import failure_of, picklable
from fullbore.runtime.processes.verdict import is_symptom, verdict
from fullbore.standard_streams import outlive_readers

__all__ = ["Worker", "launch", "load_target"]

_GRACE_S = 1.5
"""How long the parent listens for the cause once a rank has told a symptom."""

_SHORT_GRACE_S = 0.3
"""And for what came before it, once it has heard a cause."""

_INPUT_GRACE_S = 15.0
"""And for the others to meet the same bad input, or to get past it."""

_LOOK_S = 0.5
"""How often the parent looks at the board."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a launched process knows about itself."""

    rank: int
    num_ranks: int
    board: Path
    pipe: Connection | None
    """To the parent that launched it; None where another launcher did."""

    def exchange_port(self, port: int | None) -> int:
        """Rank 0 gives the port of its store; every rank gets it. Only with a parent."""
        assert self.pipe is not None, "another launcher says where the store is"
        if self.rank == 0:
            self.pipe.send_bytes(pickle.dumps(("port", port)))
        answer: int = self.pipe.recv()
        return answer


def launch(target: str, *arguments: Any, num_ranks: int, preload: Sequence[str]) -> list[Any]:
    """Run ``target(worker, *arguments)`` in ``num_ranks`` processes and return their results by rank.

    ``target`` is ``package.module:function``, so that this process need not import what only workers need.
    ``preload`` names modules that the server imports before it forks. Arguments and results must be picklable.

    Raises:
        InputError: what every rank found wrong with the input, once.
        RankFailed: the first failure, once; by then every process has ended.
    """
    context = multiprocessing.get_context("forkserver")
    processes = "fullbore.runtime.processes"
    context.set_forkserver_preload([f"{processes}.server_start", *preload, f"{processes}.server"])
    _start_server()
    with tempfile.TemporaryDirectory(prefix="fullbore-") as folder:
        board_path = Path(folder) / "board"
        board = ProgressBoard(board_path, num_ranks=num_ranks)
        killed_before = oom_kills()
        children: list[Child] = []
        try:
            for rank in range(num_ranks):
                mine, theirs = context.Pipe()
                worker = Worker(rank, num_ranks, board_path, theirs)
                process = context.Process(target=_work, args=(worker, target, arguments), name=f"fullbore-rank-{rank}")
                process.start()
                theirs.close()
                children.append(Child(rank, process, mine, _stack_path(board_path, rank), time.monotonic_ns()))
            _supervise(children, board)
            unexplained, ran_out = not any(child.explains for child in children), oom_kills() > killed_before
            outcomes = [
                child.outcome(board.read(child.rank), ask=unexplained, memory_ran_out=ran_out) for child in children
            ]
            failure = verdict(outcomes, now_ns=time.monotonic_ns())
            if failure is not None:
                raise failure
            return [child.result for child in children]
        finally:
            _end(children)
            board.close()


def _start_server() -> None:
    """With SIGINT held back, which the server inherits and `fullbore.runtime.processes.server_start` ends."""
    resource_tracker.ensure_running()  # first: starting it lets SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def load_target(target: str) -> Callable[..., Any]:
    """The function behind ``package.module:function``."""
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _work(worker: Worker, target: str, arguments: tuple[Any, ...]) -> None:
    """The body of a worker process."""
    assert worker.pipe is not None, "its parent listens"
    os.setpgid(0, 0)
    if not worker.board.parent.exists():
        os._exit(1)  # the launcher has gone while this process was being forked
    keep_stack(_stack_path(worker.board, worker.rank))
    _end_with_parent(worker.board.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # stdout is the command's answer; what user code prints here goes to stderr
    outlive_readers(stdout=OSError)
    os.environ.update(
        RANK=str(worker.rank), WORLD_SIZE=str(worker.num_ranks), LOCAL_RANK=str(worker.rank), MASTER_ADDR="127.0.0.1"
    )
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        result = load_target(target)(worker, *arguments)
    except BaseException as error:  # its frames hold the communicators: they live until the cause is told
        doing = ProgressBoard(worker.board, num_ranks=worker.num_ranks).read(worker.rank)
        _leave(worker.pipe, ("error", picklable(failure_of(error, rank=worker.rank, doing=doing))), code=1)
    _leave(worker.pipe, ("result", result), code=0)


def _leave(pipe: Connection, message: tuple[str, Any], *, code: int) -> NoReturn:
    """A last word to the parent, and out without destructors: where a neighbor is gone a communicator's can block."""
    # Plain pickle: multiprocessing's own would pass tensors as handles of memory that goes with this process.
    pipe.send_bytes(pickle.dumps(message))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _supervise(children: list[Child], board: ProgressBoard) -> None:
    """Serve the workers until all have finished, shortly after the first failure, or when one stands still."""
    deadline: float | None = None
    while running := [child for child in children if child.running]:
        left = _LOOK_S if deadline is None else max(0.0, min(_LOOK_S / 10, deadline - time.monotonic()))
        ready = wait([child.pipe for child in running], timeout=left)
        for child in running:
            if child.pipe in ready:
                grace_s = _listen(child, children)
                if grace_s is not None:
                    deadline = min(deadline or float("inf"), time.monotonic() + grace_s)
        if deadline is None:
            if any(child.stands_still(board.read(child.rank)) for child in children):
                return
        elif time.monotonic() >= deadline or _all_are_past(children, board):
            return


def _all_are_past(children: list[Child], board: ProgressBoard) -> bool:
    """Has every rank that is left got past the input that one refused? Then it is not bad for all."""
    refused = [board.read(child.rank).sequence for child in children if isinstance(child.error, InputError)]
    left = [board.read(child.rank).sequence for child in children if child.running]
    return bool(refused) and min(left, default=0) > max(refused)


def _listen(child: Child, children: list[Child]) -> float | None:
    """Take one word of a worker; how long to go on listening if that was its last. A closed pipe without a result is
    a process that died."""
    try:
        kind, value = pickle.loads(child.pipe.recv_bytes())
    except (EOFError, OSError):
        kind, value = "gone", None
    if kind == "port":
        for each in children:
            with suppress(OSError):  # one that is gone already is found by its closed pipe
                each.pipe.send(value)
        return None
    child.ended_ns = time.monotonic_ns()
    if kind == "result":
        child.state, child.result = "done", value
        return None
    if kind == "gone":
        child.state = "gone"
        return _SHORT_GRACE_S
    child.state, child.error = "failed", value
    if isinstance(value, InputError):
        return _INPUT_GRACE_S
    return _GRACE_S if is_symptom(value) else _SHORT_GRACE_S


def _end(children: list[Child]) -> None:
    """No process survives: ask all, then kill."""
    for child in children:
        if child.process.is_alive() and child.state != "done":
            child.process.terminate()
    deadline = time.monotonic() + 2.0
    for child in children:
        child.end(patience_s=deadline - time.monotonic())


def _end_with_parent(folder: Path) -> None:
    """Leave when the launcher is gone, however it went, and take along what it would have: its folder and what user
    code has started. (A server's child keeps the server alive, so waiting for the server to go would be waiting for
    oneself.)"""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is launched by somebody"

    def watch() -> None:
        wait([parent.sentinel])
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="fullbore-parent-watch", daemon=True).start()


def _stack_path(board: Path, rank: int) -> Path:
    return board.with_name(f"stack-{rank}")
