"""How far two sets of tensors are apart: max|difference| / max|reference|, per tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from fullbore.verify.report import TensorError

__all__ = ["NOISE", "TOLERANCES", "compare", "relative_error", "vanishing", "without", "worst"]


def relative_error(value: Tensor, reference: Tensor) -> float:
    """max|value - reference| / max|reference|; infinite for other shapes or anything that is not finite."""
    if value.shape != reference.shape:
        return float("inf")
    if not value.numel():
        return 0.0
    wide, wide_reference = value.detach().double(), reference.detach().double()
    difference = float((wide - wide_reference).abs().max())
    scale = float(wide_reference.abs().max())
    if difference == 0.0:
        return 0.0
    error = difference / scale if scale else float("inf")
    return error if error == error else float("inf")


TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
"""What orders of summation move a tensor by at most, relative to its largest value."""

NOISE = {"float64": 1e-14, "float32": 1e-6}
"""Below this share of the model's largest gradient a gradient is rounding noise around zero."""


def vanishing(gradients: Mapping[str, Tensor], *, noise: float) -> tuple[str, ...]:
    """Names of gradients that are zero but for rounding (a bias before a BatchNorm): no two orders of summation agree
    on them, and no share of them means anything."""
    sizes = {name: float(g.detach().double().abs().max()) for name, g in gradients.items() if g.numel()}
    largest = max(sizes.values(), default=0.0)
    return tuple(name for name, size in sizes.items() if size <= noise * largest)


def compare(values: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[TensorError, ...]:
    """One error a tensor, in the reference's order. A tensor that only one side has is infinitely far."""
    names: Sequence[str] = [*reference, *(name for name in values if name not in reference)]
    return tuple(
        TensorError(
            name,
            relative_error(values[name], reference[name]) if name in values and name in reference else float("inf"),
        )
        for name in names
    )


def worst(errors: Sequence[TensorError]) -> float:
    """The largest error; 0 without any."""
    return max((error.max_relative_error for error in errors), default=0.0)


def without(errors: Sequence[TensorError], names: Collection[str]) -> tuple[TensorError, ...]:
    """The errors of all other tensors."""
    return tuple(error for error in errors if error.name not in names)
