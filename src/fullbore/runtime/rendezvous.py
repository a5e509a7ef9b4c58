"""How the processes of a run meet: a store at rank 0's address, and the default process group over it."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from fullbore.errors import ConfigError
from fullbore.runtime.environment import from_environment

__all__ = ["join_group", "leave_group", "make_group"]

_MET: dict[str, tuple[dist.Store, int]] = {}  # type: ignore[name-defined]
"""By address: the store of this process's groups, and how many there have been."""

_STANDING: dict[object, int] = {}
"""The default group, if it was made here, and how many meshes stand on it: the last one to go takes it along."""


def join_group() -> None:
    """Stand on the default group."""
    if dist.group.WORLD in _STANDING:
        _STANDING[dist.group.WORLD] += 1


def leave_group() -> None:
    """Stand on it no longer. One that somebody else made stays."""
    if dist.group.WORLD not in _STANDING:
        return
    _STANDING[dist.group.WORLD] -= 1
    if not _STANDING[dist.group.WORLD]:
        _STANDING.clear()
        dist.destroy_process_group()


def make_group(
    backend: str,
    *,
    store: dist.Store | None,  # type: ignore[name-defined]
    num_ranks: int,
    timeout_s: float,
) -> None:
    """The default group, over ``store`` or over the one that MASTER_ADDR and MASTER_PORT name.

    A store that outlives a group (torchrun's does) still has its addresses: each group has keys of its own.

    Raises:
        ConfigError: the port is taken by something else.
    """
    if store is None:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        made = _MET.get(address)
        shared, count = (_meet(timeout_s), 0) if made is None else made
        _MET[address] = (shared, count + 1)
        store = dist.PrefixStore(f"fullbore-{count}", shared)  # type: ignore[attr-defined]
    rank, timeout = from_environment("RANK"), timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    _STANDING.clear()
    _STANDING[dist.group.WORLD] = 0


def _meet(timeout_s: float) -> dist.Store:  # type: ignore[name-defined]
    """The store of the group that the environment names.

    A client of torch's store waits for ever where something else listens on the port and says nothing. So it meets in
    a thread, which is left behind then.

    Raises:
        ConfigError: the port is taken by something else.
    """
    found: list[Any] = []

    def meet() -> None:
        try:
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
            store.set_timeout(timedelta(seconds=timeout_s))
            found.append(store)
        except Exception as error:
            found.append(error)

    meeting = threading.Thread(target=meet, name="fullbore-rendezvous", daemon=True)
    meeting.start()
    meeting.join(timeout_s + 1.0)
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    if not found:
        raise ConfigError(
            f"something listens on MASTER_ADDR:MASTER_PORT = {address} and does not answer as rank 0 does; choose a "
            "port that is free on rank 0's machine"
        )
    if not isinstance(found[0], Exception):
        return found[0]
    if "EADDRINUSE" in str(found[0]) or "address already in use" in str(found[0]).lower():
        raise ConfigError(
            f"rank 0 listens on MASTER_PORT, and that is in use on its machine (MASTER_ADDR:MASTER_PORT = {address}); "
            "choose another port for all ranks"
        ) from found[0]
    raise found[0]
