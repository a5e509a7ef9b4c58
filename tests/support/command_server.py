"""Commands in processes that are forked, not started: each finds torch and transformers imported, as ranks do.

A `fullbore train` of a tiny model spends nine tenths of its time on imports, and tests run dozens. Here one server
imports them once and forks a process for each command. That process runs ``python -m fullbore`` from its first line,
and the server of its own ranks, which `multiprocessing` would start from an executable, is forked from it too; every
other line of `fullbore.runtime.processes` is the user's. Where a test is about how a command starts, who reads its
streams or what kills it, it takes `tests.support.command.run` instead.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["CommandServer"]

PRELOAD = (
    *("torch", "torch.distributed.device_mesh", "transformers.models.llama.modeling_llama"),
    *("fullbore.train.loop", "fullbore.train.emulate", "fullbore.verify.run"),
    *("fullbore.cli.train", "fullbore.cli.verify", "fullbore.cli.trace"),
)
"""What commands and ranks import; but for `fullbore.runtime.processes.server_start`, which acts when it is imported."""


class CommandServer:
    """The tests' side. It ends with the process that made it: its standard input closes."""

    def __init__(self, *, cwd: Path) -> None:
        """``cwd``: where all commands run, and where `tests` is."""
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, arguments: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> tuple[int, str, str, int]:
        """(exit code, stdout, stderr, session) of ``fullbore ARGUMENTS`` in this environment. What is read when
        something is imported, such as OMP_NUM_THREADS, is as it was when the server began.

        Raises:
            TimeoutError: it has been ended.
        """
        process = self._begun()
        pid: int | None = None
        with tempfile.TemporaryDirectory(prefix="command-") as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {"arguments": arguments, "env": dict(env), "out": str(out), "err": str(err)}
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(request).encode() + b"\n")
                pid = _answer(process, timeout_s)
                code = _answer(process, timeout_s)
            except BaseException:  # its next answer would be taken for one to the next request
                self._process = None
                with process:
                    process.kill()
                if pid is not None:
                    os.killpg(pid, signal.SIGKILL)  # its ranks see that it is gone, and leave
                raise
            return code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"), pid

    def _begun(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.support.command_server"]
            self._process = subprocess.Popen(
                command, cwd=self._cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )  # no buffer: what is in one is not seen by `select`
        return self._process


def _answer(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    if not ready:
        raise TimeoutError(f"the command has not ended after {timeout_s} s")
    line = process.stdout.readline()
    assert line, "the server of commands has ended"
    return int(line)


def serve() -> None:
    """Fork a process for each line of standard input; answer with its pid, and with its exit code once it has ended."""
    for name in PRELOAD:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(**json.loads(line))
        os.write(1, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(*, arguments: list[str], env: dict[str, str], out: str, err: str) -> NoReturn:
    """A command, in a session of its own, so that whatever it leaves behind can be found."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
            opened = os.open(path, flags | os.O_CREAT, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["fullbore", *arguments]
        util.spawnv_passfds = _fork_server(util.spawnv_passfds)
        runpy.run_module("fullbore", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # a thread that does not end keeps a command from ending
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _fork_server(spawn: Any) -> Any:
    """`multiprocessing.util.spawnv_passfds` that forks the server of ranks, ``python -c CODE``, and starts what else
    there is."""

    def fork(path: str, args: Sequence[str], descriptors: Sequence[int]) -> int:
        code = args[-1]
        if "forkserver" not in code:
            return int(spawn(path, args, descriptors))
        pid = os.fork()
        if pid == 0:
            kept = (0, 1, 2, *sorted(descriptors))
            for low, high in pairwise((*kept, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(low + 1, high)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the command has an answer of its own
            try:
                exec(code, {"__name__": "__main__"})
            except SystemExit:
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        return pid

    return fork


if __name__ == "__main__":
    serve()
