"""VerifyReport: what a comparison found. Numbers and names only, so that whoever prints it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

__all__ = ["NOTHING_COMPARED", "NotComparable", "TensorError", "Undivided", "VerifyReport"]

NOTHING_COMPARED = "no gradient was compared, and equal losses alone prove nothing"


@dataclass(frozen=True, slots=True)
class TensorError:
    """One tensor's distance from the reference."""

    name: str
    max_relative_error: float


@dataclass(frozen=True, slots=True)
class Undivided:
    """The whole batch at once instead of the same microbatches, or each document alone: reported, not judged (sums
    associate otherwise)."""

    how: str
    loss_relative_error: float
    gradient_relative_error: float
    """The largest over all tensors."""


@dataclass(frozen=True, slots=True)
class NotComparable:
    """Something that makes equality impossible, and what was compared instead."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The document of ``fullbore verify --json``."""

    parity: bool
    tolerance: float
    dtype: str
    steps: int
    loss_errors: tuple[float, ...]
    """Relative, step by step."""

    initial_weights: tuple[TensorError, ...]
    """Exact equality is required: every cut draws the same weights."""

    gradients: tuple[TensorError, ...]
    """Of the first step, before clipping."""

    parameters: tuple[TensorError, ...]
    """After the last step, with the optimizer named in ``optimizer``."""

    buffers: tuple[TensorError, ...]
    """After the last step: running statistics and the like, without those that have not changed."""

    optimizer: str
    adamw_parameters: tuple[TensorError, ...]
    """float32 only: after the same steps of AdamW. Reported, not judged: correct code moves 1e-4 there."""

    undivided_batch: Undivided | None
    not_comparable: tuple[NotComparable, ...]

    @property
    def loss_relative_error(self) -> float:
        """The largest over the steps."""
        return max(self.loss_errors, default=0.0)

    @property
    def first_difference(self) -> str | None:
        """The first thing, in the order of training, that is not the same to the last bit, by how much and whether
        that is allowed; None if all bits are the same.

        It says where to look. Parity never means equal bits: a sum over ranks and one over a whole model round
        differently (torchtitan #4711).
        """
        losses = [
            (f"the loss of step {step} {_off_loss(error)}", error)
            for step, error in enumerate(self.loss_errors, start=1)
        ]
        in_order = [
            *_said("the initial weight", self.initial_weights),
            *losses[:1],
            *_said("the gradient of", self.gradients),
            *losses[1:],
            *_said("the parameter", self.parameters),
            *_said("the buffer", self.buffers),
        ]
        said, error = next((found for found in in_order if found[1] != 0.0), (None, 0.0))
        if said is None or not isfinite(error):
            return said
        if any(weight.max_relative_error for weight in self.initial_weights):
            return f"{said}, and every initial weight has to be the same to the last bit"
        allowed = "within" if error <= self.tolerance else "above"
        return f"{said}, {allowed} the {self.tolerance:.0e} that rounding may make"

    @property
    def failures(self) -> tuple[str, ...]:
        """Why there is no parity: that no gradient was compared, then one sentence for each thing that is too far from
        the reference, worst first."""
        found: list[tuple[float, str]] = []
        if not self.loss_relative_error <= self.tolerance:
            found.append((self.loss_relative_error, f"loss: {self.loss_relative_error:.2e}"))
        for what, errors, bound in (
            ("initial weight", self.initial_weights, 0.0),
            ("gradient", self.gradients, self.tolerance),
            ("parameter", self.parameters, self.tolerance),
            ("buffer", self.buffers, self.tolerance),
        ):
            found += [(error, f"{name}: {error:.2e}") for name, error in _named(what, errors) if not error <= bound]
        unproven = () if self.gradients else (NOTHING_COMPARED,)
        return (*unproven, *(text for _, text in sorted(found, key=lambda entry: -entry[0])))


def _said(what: str, errors: tuple[TensorError, ...]) -> list[tuple[str, float]]:
    return [(f"{name} {_off(error)}", error) for name, error in _named(what, errors)]


def _off(error: float) -> str:
    """How far a tensor is from the reference, as `TensorError` counts."""
    if not isfinite(error):
        return "cannot be compared (missing on one side, of another shape, not finite, or all zeros in the reference)"
    return f"is off by {error:.1e} of its largest value"


def _off_loss(error: float) -> str:
    if not isfinite(error):
        return "cannot be compared (it is not finite, here or in the reference)"
    return f"is off by {error:.1e} of its value"


def _named(what: str, errors: tuple[TensorError, ...]) -> list[tuple[str, float]]:
    return [(f"{what} {error.name}", error.max_relative_error) for error in errors]
