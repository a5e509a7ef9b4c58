"""Agreement: every rank must have been given the same cut, schedule and batch, or they train what nobody asked for.

Two ranks that draw their own samples give a plausible loss of mixed samples (DeepSpeed #3131); two that cut
differently lose a layer. Both are found by comparing a few bytes before anything is computed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from fullbore.errors import ConfigError
from fullbore.runtime.mesh import Mesh

__all__ = ["require_same", "require_same_batch"]


def require_same(facts: Mapping[str, object], *, mesh: Mesh) -> None:
    """Every rank calls this with its own facts. Raises ConfigError on all of them, naming the first that differs."""
    digests = {name: zlib.crc32(repr(value).encode()) for name, value in facts.items()}
    by_rank = mesh.gather(digests)
    for name, value in facts.items():
        other = next((rank for rank, theirs in enumerate(by_rank) if theirs.get(name) != by_rank[0].get(name)), None)
        if other is not None:
            raise ConfigError(
                f"all ranks need the same {name} (rank 0 and rank {other} differ; rank {mesh.rank} has {value!r:.200})"
            )


def require_same_batch(batch: Mapping[str, Tensor], slices: int, *, mesh: Mesh) -> None:
    """Compare shapes, and contents where they are on the CPU (reading a device would wait for it).

    Raises:
        ConfigError: on every rank, if the ranks were given different batches.
    """
    if mesh.num_ranks == 1:
        return
    digest = zlib.crc32(repr((slices, sorted((name, t.shape, t.dtype) for name, t in batch.items()))).encode())
    for name in sorted(batch):
        tensor = batch[name].detach()
        if tensor.device.type == "cpu":
            digest = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().reshape(-1).data, digest)
    low, high = mesh.max([-float(digest), float(digest)])
    if -low != high:
        raise ConfigError(
            "every rank reads the same batch, and these ranks were given different ones (in size or content); draw "
            "samples from one seed on all ranks"
        )
