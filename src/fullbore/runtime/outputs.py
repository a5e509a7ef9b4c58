"""OutputTap: keeps something of what the last stage gives, for whoever asked, beside the loss.

The loss is a number that every rank has; logits, predictions or a score for each sample exist on one rank only, and
nobody sends them unasked. So a caller names a function of one microbatch's output, and only its results are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fullbore.errors import ConfigError, ModelError
from fullbore.ir.placement import Placement
from fullbore.models.layered import Microbatch, Objective
from fullbore.runtime.mesh import Mesh
from fullbore.shown import shown

__all__ = ["Output", "OutputTap", "require_output", "shared_outputs"]

Output = Callable[[Any, Microbatch], Tensor]
"""(what the last layer gives, microbatch) -> a tensor to keep. Called without gradients."""


def require_output(wanted: object) -> None:
    """Raises ConfigError for what is neither None nor a function; only the last stage's rank would notice."""
    if wanted is not None and not callable(wanted):
        raise ConfigError(
            "outputs is a function of a microbatch's output and the microbatch, or None "
            f"(outputs={shown(repr(wanted))})"
        )


class OutputTap:
    """Sits in front of the objective, where the last stage's output passes by."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._wanted: Output | None = None
        self._microbatches: list[Microbatch] = []
        self._found: list[tuple[int, Tensor]] = []

    @property
    def objective(self) -> Objective:
        """The same loss and count, with the tap in front."""
        return replace(self._objective, loss_sum=self._loss_sum)

    def begin(self, wanted: Output | None) -> None:
        """Forget what was kept, and keep what ``wanted`` gives from now on."""
        self._wanted = wanted
        self._microbatches = []
        self._found = []

    def expect(self, microbatches: Sequence[Microbatch]) -> None:
        """These come next, as these objects, in any order."""
        if self._wanted is not None:
            self._microbatches += microbatches

    def take(self) -> list[tuple[int, Tensor]]:
        """What was kept, on the CPU, each with the number of its microbatch; empty where nothing was asked for or no
        last stage is here."""
        found = [(index, tensor.cpu()) for index, tensor in self._found]
        self.begin(None)
        return found

    def _loss_sum(self, output: Any, microbatch: Microbatch) -> Tensor:
        if self._wanted is not None:
            with torch.no_grad():
                kept = self._wanted(output, microbatch)
            if not isinstance(kept, Tensor):
                raise ModelError(f"outputs=... gives one tensor for a microbatch (it gave a {type(kept).__name__})")
            self._found.append((self._index(microbatch), kept.detach()))
        return self._objective.loss_sum(output, microbatch)

    def _index(self, microbatch: Microbatch) -> int:
        """Schedules run microbatches in any order, so each is known by being the same object."""
        return next(index for index, one in enumerate(self._microbatches) if one is microbatch)


def shared_outputs(mine: Sequence[tuple[int, Tensor]], *, placement: Placement, mesh: Mesh) -> list[Tensor]:
    """What the taps of all ranks have kept, in the order of the microbatches. Every rank calls this with what its own
    gave (`OutputTap.take`)."""
    found = [pair for stream in placement.streams for pair in mesh.share(mine, owner=placement.rank_of(stream[-1]))]
    return [tensor for _, tensor in sorted(found, key=lambda pair: pair[0])]
