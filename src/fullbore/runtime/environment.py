"""What a launcher (torchrun, or `fullbore.runtime.processes.launch`) says of this process, in environment variables."""

from __future__ import annotations

import os

from fullbore.errors import ConfigError

__all__ = ["from_environment", "local_rank", "local_world_size", "world_size"]


def local_rank() -> int:
    """This process's number on this machine, as torchrun gives it; 0 outside a group."""
    return from_environment("LOCAL_RANK") if "LOCAL_RANK" in os.environ else 0


def world_size() -> int:
    """How many processes the environment speaks of; 1 outside a group."""
    return from_environment("WORLD_SIZE") if "WORLD_SIZE" in os.environ else 1


def local_world_size() -> int:
    """How many processes of the group run on this machine; 1 outside a group."""
    return from_environment("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else 1


def from_environment(name: str) -> int:
    """A number that the launcher sets. Raises ConfigError where it is none."""
    value = os.environ.get(name)
    if value is None or not value.isdecimal():
        raise ConfigError(f"the environment variable {name} is a whole number ({name}={value!r}); torchrun sets it")
    return int(value)
