"""A model with a fault in it, for `model.factory`. The fault is chosen by the environment.

FULLBORE_TEST_FAULT = KIND@PLACE:RANK:CALL, or absent. KIND is a key of `KINDS`. PLACE is where the model's own code
runs, or a function of fullbore's that is entered, which a profiler sees (`sys.setprofile`); nothing is patched:

    import, factory          while the model is made (CALL is 1)
    measure, build           the first forward of all; the first initialisation after the layers were measured
    forward, backward        the CALL-th of that rank in training: one for each microbatch
    loss, count              the CALL-th loss of the last rank; the CALL-th counting of a microbatch's labels
    evaluate, optimizer      the CALL-th forward in evaluation mode; the CALL-th optimizer step
    draw, reduce, close      the CALL-th drawing of a batch, reduction of the loss, closing of a pipeline

FULLBORE_TEST_REACHED names a file that gets the time of the fault, FULLBORE_TEST_DATA the tokens that some kinds spoil.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.models.load import layered
from fullbore.models.next_token import next_token_objective

VOCABULARY = 256
NUM_RANKS = int(os.environ.get("WORLD_SIZE", "1"))

_ABSURD = 1 << 48
"""Bytes, more than a process can address."""

_INSIDE = {
    ("draw", os.path.join("fullbore", "data", "batches.py")): "draw",
    ("global_loss", os.path.join("fullbore", "runtime", "global_loss.py")): "reduce",
    ("release", os.path.join("fullbore", "runtime", "pipeline.py")): "close",
}
"""(function, file) -> place."""

_SEEN: Counter[str] = Counter()
"""Calls of each place on this rank."""


def _raise() -> None:
    raise ValueError("this layer does not like the number 13")


def _fill_limit() -> None:
    """Python's own MemoryError, from a limit that the system enforces."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


def _spin() -> None:
    while True:
        pass


def _write_over(path: Path) -> None:
    """In place: whoever has mapped the file sees it."""
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


def _hold_the_lock() -> None:
    """Native code that never gives the interpreter back: a match that takes 2 to the 60th steps."""
    re.match("(a+)+$", 60 * "a" + "b")


KINDS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "raise": _raise,
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "hang": lambda: time.sleep(3600),
        "wait": lambda: subprocess.run(["sleep", "30"], check=True),
        "spin": _spin,
        "lock": _hold_the_lock,
        "exit": lambda: os._exit(7),
        "exit0": lambda: os._exit(0),
        "sysexit": lambda: sys.exit(3),
        "crash": lambda: ctypes.string_at(0),
        "memory": lambda: torch.empty(_ABSURD, dtype=torch.uint8),
        "pymemory": lambda: bytearray(_ABSURD),
        "limit": _fill_limit,
        "device": lambda: torch.ones(1, device="cuda"),
        "truncate": lambda: os.truncate(os.environ["FULLBORE_TEST_DATA"], 0),
        "overwrite": lambda: _write_over(Path(os.environ["FULLBORE_TEST_DATA"])),
    }
)


class Faulty(nn.Module):
    """Passes its input on, until its time comes. Every rank holds one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        _SEEN["initialisations"] += 1
        if _is_built():
            if any(f"@{place}:" in os.environ.get("FULLBORE_TEST_FAULT", "") for place in _INSIDE.values()):
                sys.setprofile(_profile)
            _reach("build")

    def forward(self, value: Tensor) -> Tensor:
        if value.is_meta:
            return value
        if not _is_built():
            _reach("measure")
            return value
        _reach("forward" if self.training else "evaluate")
        passed: Tensor = _Passing.apply(value)
        return passed


class _Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        _reach("backward")
        return gradients[0]


def model() -> LayeredModel:
    """embed, a block for each rank, head. Cut [2, 2] or [2, 1, 2] or ..., so that each rank has one block."""
    _reach("factory")
    register_optimizer_step_pre_hook(lambda *_: _reach("optimizer"))
    with torch.device("meta"):
        blocks = [nn.Sequential(nn.Linear(16, 16), Faulty(), nn.Tanh()) for _ in range(NUM_RANKS)]
        chain = nn.Sequential(nn.Embedding(VOCABULARY, 16), *blocks, nn.Linear(16, VOCABULARY))
    return layered(chain, objective=Objective(loss_sum=_loss_sum, count=_count))


def _loss_sum(logits: Tensor, microbatch: Microbatch) -> Tensor:
    if _is_built():
        _reach("loss")
    return next_token_objective().loss_sum(logits, microbatch)


def _count(microbatch: Microbatch) -> int:
    _reach("count")
    return next_token_objective().count(microbatch)


def _profile(frame: FrameType, event: str, argument: object) -> None:
    del argument
    name = frame.f_code.co_name
    if event == "call" and name in ("draw", "global_loss", "release"):
        place = next(
            (
                place
                for (function, file), place in _INSIDE.items()
                if function == name and frame.f_code.co_filename.endswith(file)
            ),
            None,
        )
        if place is not None:
            _reach(place)


def _is_built() -> bool:
    """Measuring initialises every block once; what comes after is the stage."""
    return _SEEN["initialisations"] > NUM_RANKS


def _reach(place: str) -> None:
    """Count, and fail where it is time."""
    _SEEN[place] += 1
    fault = os.environ.get("FULLBORE_TEST_FAULT")
    if fault:
        kind, _, rest = fault.partition("@")
        if rest == f"{place}:{os.environ['RANK']}:{_SEEN[place]}":
            reached = os.environ.get("FULLBORE_TEST_REACHED")
            if reached:
                Path(reached).write_text(str(time.time()))
            KINDS[kind]()


def with_weights() -> nn.Sequential:
    """The same without faults, on a real device: its weights are the user's own and are kept."""
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))


def mismatched() -> nn.Sequential:
    """Its last layer does not take what the one before it gives."""
    return nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(16, 256))


def frozen() -> nn.Sequential:
    """The same, and nothing in it trains."""
    return with_weights().requires_grad_(False)


def batch_normed() -> nn.Sequential:
    """A BatchNorm takes the bias before it away: that bias's gradient is zero but for rounding."""
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Flatten(0, 1), nn.Linear(16, 16), nn.BatchNorm1d(16), Rows())


class Rows(nn.Module):
    """Back to [sample, position, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, value: Tensor) -> Tensor:
        print("user code may print")
        return self.head(value).unflatten(0, (-1, 16))


def dropping() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Dropout(0.5), nn.Linear(16, VOCABULARY))


_reach("import")
