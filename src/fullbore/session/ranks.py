"""Starting the ranks of a command: our own workers on this machine, or the group that is already there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from fullbore.errors import ConfigError
from fullbore.runtime.launch import launch, load_target

__all__ = ["in_a_group", "run_ranks"]


def in_a_group() -> bool:
    """Has torchrun (or Ray, Slurm, ...) started this process as one of several?"""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_ranks(target: str, *arguments: Any, num_ranks: int, preload: Sequence[str]) -> Any:
    """Run ``target(worker, *arguments)`` on every rank; rank 0's result. ``target`` is ``package.module:function``.

    ``worker`` is None in a group that was there before: then this process is one rank, and gets its own result.

    Raises:
        ConfigError: the group has another size than the configuration.
    """
    if in_a_group():
        present = _from_environment("WORLD_SIZE")
        _from_environment("RANK")
        if present > 1 and "MASTER_ADDR" not in os.environ:
            raise ConfigError("RANK and WORLD_SIZE are set but MASTER_ADDR is not; start with torchrun, or unset them")
        if present != num_ranks:
            raise ConfigError(
                f"the configuration needs {num_ranks} processes (pipeline.stages * mesh axes); torchrun started "
                f"{present}; use --nproc-per-node {num_ranks} or change pipeline.stages"
            )
        with redirect_stdout(sys.stderr):
            return load_target(target)(None, *arguments)
    return launch(target, *arguments, num_ranks=num_ranks, preload=preload)[0]


def _from_environment(name: str) -> int:
    value = os.environ[name]
    if not value.isdecimal():
        raise ConfigError(f"the environment variable {name} is a whole number ({name}={value!r}); torchrun sets it")
    return int(value)
