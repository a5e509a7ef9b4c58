"""Functions run on launched ranks, many on one set of processes: a group costs more than most of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.launch import Worker, launch, load_target
from tests.support.ranks import PRELOAD, group


def run_scenarios(*scenarios: Callable[[Mesh], Any], num_ranks: int) -> dict[str, list[Any]]:
    """Results by rank, by the name of the function; each is called with the group's mesh."""
    targets = [f"{scenario.__module__}:{scenario.__name__}" for scenario in scenarios]
    by_rank = launch("tests.support.scenarios:run_all", targets, num_ranks=num_ranks, preload=PRELOAD)
    names = [scenario.__name__ for scenario in scenarios]
    return {name: [results[index] for results in by_rank] for index, name in enumerate(names)}


def run_all(worker: Worker, targets: Sequence[str]) -> list[Any]:
    mesh = group(worker)
    found = [load_target(target)(mesh) for target in targets]
    mesh.barrier()
    mesh.close()
    return found
