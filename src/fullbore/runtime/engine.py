"""StageEngine: how one stage computes. The seam between the executor and the mathematics.

The executor decides when; an engine decides how. Eager autograd is the first; an emulated one waits instead
of computing; a compiled one can take their place without touching the executor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from fullbore.ids import MicrobatchIndex
from fullbore.ir.action import Kind
from fullbore.models.layered import Microbatch, Parcel

__all__ = ["Nested", "StageEngine"]

Nested = Callable[[Kind], AbstractContextManager[None]]
"""Entered around work inside the current action that deserves a span of its own (recomputation)."""


class StageEngine(Protocol):
    """One stage. Everything kept for a microbatch is let go of at its last use."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of action it can run; a schedule with others is refused before the run."""

    @property
    def num_live(self) -> int:
        """How many microbatches' activations it holds now, in whole or in part: a recomputed layer's input is one."""

    @property
    def held_bytes(self) -> int:
        """What it keeps for weight gradients that are still owed: the inputs and output gradients of operations."""

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        """Run forward and keep what backward needs.

        ``carried`` is the previous stage's output, None on the first stage. Returns this stage's output,
        detached and contiguous; None on the last stage, which keeps the loss instead.
        """

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        """Full backward: accumulate the weights' gradients, return the gradients of ``carried``.

        ``gradients`` belong to the output, one for each tensor of its boundary that has one; None on the last
        stage, which starts from its loss. Returns None on the first stage.
        """

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        """As `backward`, but weight gradients may be left to `backward_weight`. Keeps only what that needs."""

    def backward_weight(self, index: MicrobatchIndex) -> None:
        """Accumulate the weight gradients that `backward_input` has left. The last use of the microbatch."""

    def recompute(self, index: MicrobatchIndex) -> None:
        """Run forward again what was not kept, before the gradients are there. Without it the backward does so."""
