"""Agreement: every rank must have been given the same cut, schedule and batch, or they train what nobody asked for.

Two ranks that draw their own samples give a plausible loss of mixed samples (DeepSpeed #3131); two that cut
differently lose a layer. Both are found by comparing a few bytes before anything is computed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from fullbore.errors import ConfigError, InputError
from fullbore.models.layered import Microbatch
from fullbore.runtime.mesh import Mesh
from fullbore.shown import shown

__all__ = ["Crossings", "all_or_none", "require_same", "same_microbatches"]

_T = TypeVar("_T")

Crossings = Mapping[str, str]
"""Name of a stage's first layer -> what comes in there, in words."""


def require_same(facts: Mapping[str, object], *, mesh: Mesh) -> None:
    """Every rank calls this with its own facts. Raises ConfigError on all of them, naming the first that differs."""
    digests = {name: zlib.crc32(repr(value).encode()) for name, value in facts.items()}
    by_rank = mesh.gather(digests)
    for name, value in facts.items():
        other = next((rank for rank, theirs in enumerate(by_rank) if theirs.get(name) != by_rank[0].get(name)), None)
        if other is not None:
            raise ConfigError(
                f"all ranks need the same {name} (rank 0 and rank {other} differ; rank {mesh.rank} has "
                f"{shown(repr(value))})"
            )


def all_or_none(make: Callable[[], _T], *, mesh: Mesh) -> _T:
    """What ``make`` gives on this rank, once it has given something on every rank. Every rank calls this. What is no
    refusal (memory that is not there, a fault in somebody's own code) ends this rank alone, and it is named for that.

    Raises:
        InputError: ``make`` refuses on this rank.
        ConfigError: it refuses on another one only; says what.
    """
    problem: InputError | None = None
    made: list[_T] = []
    try:
        made.append(make())
    except InputError as error:
        problem = error
    _raise_together(problem, doing="cannot begin", mesh=mesh)
    return made[0]


def same_microbatches(
    cut: Callable[[], Sequence[Microbatch]],
    *,
    crossings: Callable[[Sequence[Microbatch]], Crossings],
    mesh: Mesh,
) -> Sequence[Microbatch]:
    """What ``cut`` gives on this rank, once every rank has been given the same, and expects the same to cross.

    Number, names, shapes and types are compared, and contents where they are on the CPU (reading a device would wait
    for it). A rank that cannot cut its batch still takes part: then nobody is left waiting for it.

    Args:
        crossings: what crosses with these microbatches. It follows from the model, of which every rank has one of its
            own: two with different weights frozen would wait for a gradient that nobody sends.

    Raises:
        Exception: this rank cannot cut its batch.
        ConfigError: another one cannot, with what it says; or it has been given another batch; or it has another
            model.
    """
    if mesh.num_ranks == 1:
        return cut()
    problem: Exception | None = None
    microbatches: Sequence[Microbatch] = ()
    crossing: Crossings = {}
    digest = other = 0.0
    try:
        microbatches = cut()
        digest = float(_digest(microbatches))
        crossing = crossings(microbatches)
        other = float(zlib.crc32(repr(crossing).encode()))
    except Exception as error:
        problem = error
    least, most, least_other, most_other, failed = mesh.max(
        [-digest, digest, -other, other, float(problem is not None)]
    )
    if failed:
        _raise_together(problem, doing="refuses this step", mesh=mesh)
    if -least != most:
        raise ConfigError(
            "every rank reads the same batch, and these ranks were given different ones (in size or content); draw "
            "samples from one seed on all ranks"
        )
    if -least_other != most_other:
        _raise_crossing(crossing, mesh=mesh)
    return microbatches


def _raise_crossing(mine: Crossings, *, mesh: Mesh) -> None:
    """Every rank calls this with what it expects to cross, and raises the same."""
    first, *others = mesh.gather(mine)
    for rank, theirs in enumerate(others, start=1):
        for layer, expected in first.items():
            if theirs.get(layer) != expected:
                raise ConfigError(
                    f"every rank has the same model, but in front of layer {layer!r} rank 0 expects {expected}, and "
                    f"rank {rank} {theirs.get(layer)}; build it alike on all ranks, and freeze the same weights on all "
                    "of them before the pipeline is built"
                )


def _raise_together(problem: Exception | None, *, doing: str, mesh: Mesh) -> None:
    """Raise on every rank if any has a problem: there its own, elsewhere what the first one says."""
    own = problem is None or isinstance(problem, InputError)
    said = mesh.gather(None if problem is None else f"{'' if own else type(problem).__name__ + ': '}{problem}")
    if problem is not None:
        raise problem
    rank = next((rank for rank, sentence in enumerate(said) if sentence is not None), None)
    if rank is not None:
        raise ConfigError(f"rank {rank} {doing}: {said[rank]}")


def _digest(microbatches: Sequence[Microbatch]) -> int:
    """32 bits, which a float64 holds exactly."""
    digest = 0
    for microbatch in microbatches:
        facts = sorted((name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in microbatch.items())
        digest = zlib.crc32(repr(facts).encode(), digest)
        for name in sorted(microbatch):
            tensor = microbatch[name].detach()
            if tensor.device.type == "cpu":
                tensor = tensor.resolve_conj().resolve_neg()  # a view of other numbers has no bytes of its own
                digest = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, digest)
    return digest
