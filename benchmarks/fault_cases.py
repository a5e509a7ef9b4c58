"""The faults that `faults_runtime.py` injects: which kind, where, on which rank, and what must be said of it.

Faults come out of the user's own code, the model of `tests/support/faulty.py` and the files it is trained on; what
KIND and PLACE mean stands there. The 9th to 16th of a rank's forwards, backwards, losses and counted microbatches
are those of step 2, since a step has 8 microbatches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fullbore.runtime.processes.board import START_UP_FACTOR

__all__ = ["CASES", "MICROBATCHES", "Case"]

MICROBATCHES = 8

_RAISED = r"ValueError: this layer does not like the number 13"
_PLACE_IN_FILE = r"\(\S*faulty\.py:\d+ in \S+\)"
_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "raise": _RAISED,
        "kill": r"was killed by SIGKILL .*the machine ran out of memory",
        "stop": r"the process is stopped",
        "hang": _PLACE_IN_FILE,
        "wait": _PLACE_IN_FILE,
        "spin": _PLACE_IN_FILE,
        "lock": _PLACE_IN_FILE,
        "exit": r"exited with code 7",
        "exit0": r"exited with code 0",
        "sysexit": r"SystemExit: 3",
        "crash": rf"was killed by SIGSEGV .*{_PLACE_IN_FILE}",
        "memory": r"can't allocate memory",
        "pymemory": r"MemoryError",
        "limit": r"MemoryError",
        "device": r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|NVIDIA driver",
        "truncate": r"was killed by SIGBUS .*a file that it had mapped became shorter",
        "overwrite": r"has token 65535, outside the vocabulary of 256",
        "fifo": r"\(\S*jsonl\.py:\d+ in \w+\)",
        "port": r"in use on its machine|does not answer as rank 0 does",
        "world": r"the configuration needs 2 processes .*torchrun started 3",
    }
)
_START: Mapping[str, str] = MappingProxyType(
    {
        "import": "building the model",
        "factory": "building the model",
        "measure": "measuring the layers",
        "build": "building its stage",
        "read": "reading the data",
        "close": "closing",
        "join": "MASTER_ADDR:MASTER_PORT",
        "group": "use --nproc-per-node 2",
    }
)
_SLOW = frozenset({"hang", "stop", "wait", "spin", "lock", "fifo", "port"})
"""Kinds that only a timeout can find."""


@dataclass(frozen=True, slots=True)
class Case:
    """One injected fault. ``rank`` is None where every rank meets it."""

    kind: str
    place: str
    rank: int | None
    call: int = 1
    ranks: int = 2
    started_by: str = "fullbore"
    """Or ``torchrun``, or the ``environment`` (RANK and so on, as under Slurm): there every rank speaks."""

    sets: tuple[str, ...] = field(default=())

    @property
    def where(self) -> str:
        return "every rank" if self.rank is None else f"rank {self.rank} of {self.ranks}"

    @property
    def action(self) -> str:
        """What the rank must be said to have been doing."""
        if self.place in _START:
            return _START[self.place]
        step, microbatch = divmod(self.call - 1, MICROBATCHES)
        match self.place:
            case "forward" | "loss":
                return f"{self.rank}F{microbatch} .*of step {step + 1}"
            case "backward":
                return f"{self.rank}B{microbatch} .*of step {step + 1}"
            case "evaluate":
                return (
                    f"{self.rank}F{microbatch} .*of the evaluation {'before step 1' if step == 0 else 'after step 2'}"
                )
            case "count":
                return f"preparing the batch of step {step + 1}"
            case "draw":
                return f"drawing the batch of step {self.call}"
            case "optimizer":
                return f"the optimizer of step {self.call}"
            case "reduce":
                return f"the reduction of the loss of step {self.call}"
        raise ValueError(f"no place {self.place!r}")

    @property
    def cause(self) -> str:
        """Why, as it must be said. Under torchrun nobody can ask a stuck rank where it is."""
        if self.kind == "hang" and self.started_by == "torchrun":
            return r"rank 2 has been in \w+ of step 2 for"
        return _CAUSES[self.kind]

    def allowed_s(self, timeout_s: float) -> float:
        """From the fault to the end of the command: at once, or after one timeout; in start-up, where one rank may take
        so much longer than another, after five. Two more are for the others to get to where they wait, for listening
        and for ending; three in start-up, and where torchrun watches. A fault that is there from the beginning is timed
        from the command's start, which takes another two on a busy machine.
        """
        starting = self.place in _START and self.place != "close"
        waits = 0 if self.kind not in _SLOW else START_UP_FACTOR if starting else 1
        more = 3 if self.place in _START or self.started_by != "fullbore" else 2
        return (waits + more + (2 if self.rank is None else 0)) * timeout_s


def _each(text: str) -> list[Case]:
    """``KIND@PLACE:RANK:CALL/RANKS``, one a word."""
    found = []
    for word in text.split():
        matched = re.fullmatch(r"(\w+)@(\w+):(\d+):(\d+)/(\d+)", word)
        assert matched is not None, word
        kind, place, *numbers = matched.groups()
        found.append(Case(kind, place, *map(int, numbers)))
    return found


_EVALUATING = ("train.eval_every=2", "train.eval_batches=1")

CASES: tuple[Case, ...] = (
    *_each("raise@import:0:1/2 raise@factory:1:1/3 hang@factory:2:1/3 kill@factory:0:1/2 device@factory:1:1/2"),
    *_each("sysexit@import:1:1/2 exit0@import:1:1/3 stop@import:0:1/3"),
    *_each("raise@measure:1:1/3 hang@measure:0:1/2 stop@measure:1:1/2 kill@measure:2:1/3"),
    *_each("memory@build:0:1/2 kill@build:1:1/3 hang@build:2:1/3"),
    *_each("raise@count:0:9/2 hang@count:1:9/3 kill@draw:1:2/2 stop@draw:0:2/3 hang@draw:2:2/3 raise@draw:1:2/3"),
    *_each("raise@forward:1:12/3 kill@forward:2:12/3 stop@forward:0:12/2 hang@forward:1:12/2 spin@forward:0:12/3"),
    *_each("lock@forward:1:12/3 wait@forward:2:12/3 exit@forward:1:12/3 exit0@forward:0:12/2 sysexit@forward:1:12/2"),
    *_each("crash@forward:2:12/3 memory@forward:1:12/2 pymemory@forward:0:12/3 limit@forward:1:12/2"),
    *_each("raise@loss:1:12/2 hang@loss:2:12/3 hang@forward:0:12/1"),
    *_each("raise@backward:0:12/2 kill@backward:1:12/3 stop@backward:2:12/3 hang@backward:0:16/3"),
    *_each("memory@backward:1:12/2 exit@backward:0:9/3"),
    *_each("raise@optimizer:1:2/2 kill@optimizer:0:2/3 hang@optimizer:2:2/3 stop@optimizer:1:2/3"),
    *_each("kill@reduce:1:2/2 hang@reduce:0:2/3 stop@reduce:2:2/3"),
    *_each("raise@close:1:1/2 kill@close:0:1/3 hang@close:2:1/3"),
    *(
        Case(case.kind, case.place, case.rank, case.call, case.ranks, sets=_EVALUATING)
        for case in _each(
            "raise@evaluate:0:3/2 kill@evaluate:1:11/3 hang@evaluate:2:11/3 stop@evaluate:1:3/2 memory@evaluate:0:11/3"
        )
    ),
    Case("fifo", "read", None),
    Case("truncate", "draw", None, 3),
    Case("overwrite", "draw", None, 3, ranks=3),
    Case("raise", "forward", 1, 12, started_by="torchrun"),
    Case("hang", "backward", 2, 12, ranks=3, started_by="torchrun"),
    Case("world", "group", None, started_by="torchrun"),
    Case("port", "join", None, started_by="environment"),
)
