"""Agreement: every rank must have been given the same cut, schedule and batch, or they train what nobody asked for.

Two ranks that draw their own samples give a plausible loss of mixed samples (DeepSpeed #3131); two that cut
differently lose a layer. Both are found by comparing a few bytes before anything is computed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import torch

from fullbore.errors import ConfigError, InputError
from fullbore.models.layered import Microbatch
from fullbore.runtime.mesh import Mesh

__all__ = ["require_same", "same_microbatches"]


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


def same_microbatches(cut: Callable[[], Sequence[Microbatch]], *, mesh: Mesh) -> Sequence[Microbatch]:
    """What ``cut`` gives on this rank, once every rank has been given the same.

    Number, names, shapes and types are compared, and contents where they are on the CPU (reading a device would wait
    for it). A rank that cannot cut its batch still takes part: then nobody is left waiting for it.

    Raises:
        InputError: this rank cannot cut its batch.
        ConfigError: another one cannot, with what it says; or it has been given another batch.
    """
    if mesh.num_ranks == 1:
        return cut()
    problem: InputError | None = None
    microbatches: Sequence[Microbatch] = ()
    try:
        microbatches = cut()
    except InputError as error:
        problem = error
    digest = float(_digest(microbatches))
    least, most, failed = mesh.max([-digest, digest, float(problem is not None)])
    if failed:
        said = mesh.gather(None if problem is None else str(problem))
        if problem is not None:
            raise problem
        rank = next(rank for rank, sentence in enumerate(said) if sentence is not None)
        raise ConfigError(f"rank {rank} refuses this step: {said[rank]}")
    if -least != most:
        raise ConfigError(
            "every rank reads the same batch, and these ranks were given different ones (in size or content); draw "
            "samples from one seed on all ranks"
        )
    return microbatches


def _digest(microbatches: Sequence[Microbatch]) -> int:
    """32 bits, which a float64 holds exactly."""
    digest = 0
    for microbatch in microbatches:
        facts = sorted((name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in microbatch.items())
        digest = zlib.crc32(repr(facts).encode(), digest)
        for name in sorted(microbatch):
            tensor = microbatch[name].detach()
            if tensor.device.type == "cpu":
                digest = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, digest)
    return digest
