"""Reading the tensors of a microbatch, with an error that names what is missing or has another shape."""

from __future__ import annotations

from torch import Tensor

from fullbore.errors import ModelError
from fullbore.models.layered import Microbatch

__all__ = ["sequences_of", "tensor_of"]


def tensor_of(microbatch: Microbatch, *, key: str, reader: str) -> Tensor:
    """The tensor under ``key``.

    Raises:
        ModelError: it is not there; names the reader and what the microbatch holds.
    """
    tensor = microbatch.get(key)
    if tensor is None:
        held = ", ".join(sorted(microbatch)) or "nothing"
        raise ModelError(f"{reader} reads {key!r} from each microbatch (it holds {held}); add it")
    return tensor


def sequences_of(microbatch: Microbatch, *, key: str, reader: str) -> tuple[int, int]:
    """(samples, length) of the token sequences under ``key``.

    Raises:
        ModelError: it is not there, or not ``[samples, length]``.
    """
    shape = tuple(tensor_of(microbatch, key=key, reader=reader).shape)
    if len(shape) != 2:
        raise ModelError(
            f"{key!r} of a microbatch is [samples, length] (given shape {list(shape)}); give one sequence as "
            "[1, length]"
        )
    return shape
