"""What `step` and `evaluate` are given, as microbatches: one mapping is cut along its samples, a sequence is taken as
it is.

Every microbatch has shapes of its own, and every rank derives them from the batch it holds. So slices need not be
equal (pytorch #126600: 8 samples in 3 gave 3, 3, 2 on one stage and buffers of 3, 3, 3 on the next), and the loss is a
sum over one count, so that no slice weighs more than its items.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real

import torch
from torch import Tensor

from fullbore.errors import ConfigError, ModelError
from fullbore.models.layered import Microbatch, Objective
from fullbore.shown import shown

__all__ = ["Batch", "counted", "microbatches_of", "on_device", "split_batch"]

Batch = Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]
"""Tensors ``[samples, ...]`` to be cut, or microbatches that already are, each with shapes of its own."""


def microbatches_of(batch: Batch, *, number: int | None, most: int) -> list[Microbatch]:
    """The microbatches of a batch, in order.

    Args:
        number: how many there must be; None takes a sequence as long as it is, and cuts a mapping into ``most`` or,
            where it has fewer, one for each sample.

    Raises:
        ConfigError: the batch cannot give that many, or is neither form; says what would do.
    """
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise ConfigError(
            f"a batch is cut into a whole number of microbatches, at least 1 (num_microbatches={shown(repr(number))})"
        )
    if isinstance(batch, Mapping):
        _require_values(batch, "the batch")
        if number is None:
            number = min(most, _num_samples(batch))
        return split_batch(batch, number)
    if not isinstance(batch, Sequence) or not all(isinstance(one, Mapping) for one in batch):
        raise ConfigError(
            f"a batch is a mapping of tensors or a sequence of such mappings, one for each microbatch (given a "
            f"{type(batch).__name__})"
        )
    wanted = max(1, len(batch)) if number is None else number
    if len(batch) != wanted:
        raise ConfigError(
            f"a sequence is taken as the microbatches themselves, and here there must be {wanted} of them (given "
            f"{len(batch)}); group the samples into that many, or give one mapping to be cut"
        )
    for index, microbatch in enumerate(batch):
        _require_values(microbatch, f"microbatch {index}")
        filled = all(isinstance(tensor, Tensor) and tensor.numel() for tensor in microbatch.values())
        if not filled or not any(tensor.dim() for tensor in microbatch.values()):
            raise ConfigError(
                f"a microbatch is a mapping of tensors that are not empty, samples along dimension 0 (microbatch "
                f"{index} is {_shapes(microbatch)})"
            )
    return [dict(microbatch) for microbatch in batch]


def split_batch(batch: Mapping[str, Tensor], num_microbatches: int) -> list[Microbatch]:
    """Slices along dimension 0, in order, without copying; sizes differ by at most one sample, the larger come first.

    Raises:
        ConfigError: no tensors, different numbers of samples, or fewer samples than microbatches (an empty microbatch
            would be an action that computes nothing).
    """
    samples = _num_samples(batch)
    if samples < num_microbatches:
        raise ConfigError(
            f"every microbatch needs a sample, and {samples} samples do not make {num_microbatches} microbatches; "
            f"use {num_microbatches} samples or more, or at most {samples} microbatches a step"
        )
    each, more = divmod(samples, num_microbatches)
    edges = [index * each + min(index, more) for index in range(num_microbatches + 1)]
    return [{name: tensor[first:end] for name, tensor in batch.items()} for first, end in pairwise(edges)]


def counted(microbatches: Sequence[Microbatch], objective: Objective) -> int:
    """How many items of all microbatches count.

    Raises:
        ConfigError: a microbatch lacks what ``Objective.count`` reads.
        ModelError: it gives something else than finite numbers whose sum is whole and not negative.
    """
    total: float = 0
    for index, microbatch in enumerate(microbatches):
        try:
            items: object = objective.count(microbatch)
        except KeyError as error:
            if not error.args or error.args[0] in microbatch:
                raise  # of something else
            raise ConfigError(
                f"Objective.count reads {error.args[0]!r} from each microbatch, and microbatch {index} does not have "
                f"it (it is {_shapes(microbatch)}); add it"
            ) from error
        total += _number(items, index)
    if total < 0 or total != int(total):
        raise ModelError(f"Objective.count gives whole numbers of at least 0 (their sum is {total})")
    return int(total)


def _number(items: object, index: int) -> float:
    one = isinstance(items, Real) or (isinstance(items, Tensor) and items.numel() == 1)
    number = float(items) if one else math.nan  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ModelError(
            f"Objective.count gives a number for each microbatch (microbatch {index}: {shown(repr(items))})"
        )
    return number


def _require_values(batch: Mapping[str, object], name: str) -> None:
    """Raises ConfigError for a tensor that cannot be compared, cut or moved as plain rows of values, or that has no
    name."""
    for key, tensor in batch.items():
        if not isinstance(key, str):
            raise ConfigError(
                f"tensors of a batch go by names ({name} has the key {shown(repr(key))}); use text for keys"
            )
        if not isinstance(tensor, Tensor):
            continue
        kind = "a nested tensor" if tensor.is_nested else "on the meta device" if tensor.is_meta else tensor.layout
        if kind is not torch.strided:
            raise ConfigError(f"a batch holds dense tensors with values ({key!r} of {name} is {kind}); make it one")
        if tensor.requires_grad:
            raise ConfigError(
                f"a batch is data, and no gradient goes on through it ({key!r} of {name} requires one); detach it, or "
                "make what it is computed from a layer of the model"
            )


def _num_samples(batch: Mapping[str, Tensor]) -> int:
    sizes = {name: len(tensor) if isinstance(tensor, Tensor) and tensor.dim() else 0 for name, tensor in batch.items()}
    samples = next(iter(sizes.values()), 0)
    if samples == 0 or any(size != samples for size in sizes.values()):
        raise ConfigError(f"a batch is a mapping of tensors with one number of samples, at least 1 (given {sizes})")
    return samples


def _shapes(microbatch: Mapping[str, Tensor]) -> dict[str, object]:
    return {
        name: list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        for name, tensor in microbatch.items()
    }


def on_device(microbatches: Sequence[Microbatch], device: torch.device) -> list[Microbatch]:
    """The same on a device; what is there already is not copied."""
    return [{name: t.to(device, non_blocking=True) for name, t in one.items()} for one in microbatches]
