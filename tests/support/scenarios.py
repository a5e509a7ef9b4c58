"""Functions of a module run on launched ranks, many on one set of processes: a group costs more than most of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fullbore.runtime.processes.launch import Worker, launch
from tests.support.ranks import PRELOAD, group


def run_scenarios(module: str, *names: str, num_ranks: int) -> dict[str, list[Any]]:
    """Results by rank, by name; each function is called with the group's mesh."""
    by_rank = launch("tests.support.scenarios:run_all", module, names, num_ranks=num_ranks, preload=PRELOAD)
    return {name: [results[name] for results in by_rank] for name in names}


def run_all(worker: Worker, module: str, names: Sequence[str]) -> dict[str, Any]:
    mesh = group(worker)
    functions = vars(importlib.import_module(module))
    found = {name: functions[name](mesh) for name in names}
    mesh.barrier()
    mesh.close()
    return found
