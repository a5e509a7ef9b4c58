"""Cutting a batch into microbatches: views along the samples, all of one size."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fullbore.errors import ConfigError
from fullbore.models.layered import Microbatch

__all__ = ["split_batch"]


def split_batch(batch: Mapping[str, Tensor], num_microbatches: int) -> list[Microbatch]:
    """Slices along dimension 0, in order, without copying.

    Raises:
        ConfigError: no tensors, different numbers of samples, or a number that does not divide. (Uneven slices
            would need uneven buffers on every rank: pytorch #126600.)
    """
    sizes = {name: len(tensor) for name, tensor in batch.items()}
    samples = next(iter(sizes.values()), 0)
    if samples == 0 or any(size != samples for size in sizes.values()):
        raise ConfigError(f"a batch is a mapping of tensors with one number of samples, at least 1 (given {sizes})")
    if samples % num_microbatches:
        lower = samples // num_microbatches * num_microbatches
        nearest = [str(n) for n in (lower, lower + num_microbatches) if n > 0]
        raise ConfigError(
            f"a batch must divide into {num_microbatches} equal microbatches "
            f"({samples} samples do not); use {' or '.join(nearest)} samples"
        )
    each = samples // num_microbatches
    return [{name: tensor[first : first + each] for name, tensor in batch.items()} for first in range(0, samples, each)]
