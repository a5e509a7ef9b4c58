"""Intake: what `step` and `evaluate` are given becomes microbatches on every rank, the same ones, or is refused by all.

A rank that refuses alone would leave the others waiting for its messages. So what may be wrong with the batch, the
weights or the stages is looked at here, before the first one is sent. What the objective counts in the microbatches
comes after it: user code that raises there is told by its own rank, as in a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Microbatch, Objective
from fullbore.runtime.agreement import same_microbatches
from fullbore.runtime.batch import Batch, counted, microbatches_of
from fullbore.runtime.local_stages import LocalStages
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.mirrored import require_mirrorable
from fullbore.runtime.outputs import Output, OutputTap, require_output
from fullbore.runtime.trainable import Trainable

__all__ = ["Intake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """One rank's end of it."""

    schedule: Schedule
    objective: Objective
    stages: LocalStages
    trainable: Trainable
    tap: OutputTap
    mesh: Mesh

    def take(self, batch: Batch, *, number: int | None, outputs: Output | None) -> tuple[Sequence[Microbatch], int]:
        """The microbatches, and how many of their items count. Every rank calls this.

        Args:
            number: how many there must be; None: as `microbatches_of`, with as many as in training for the most.
            outputs: what the tap keeps of them.

        Raises:
            ConfigError, ModelError: this rank or another cannot run on what it was given, or ranks were given
                different batches.
        """
        microbatches = same_microbatches(
            lambda: self._cut(batch, number, outputs), crossings=self.stages.crossings, mesh=self.mesh
        )
        self.tap.begin(outputs)
        return microbatches, counted(microbatches, self.objective)

    def _cut(self, batch: Batch, number: int | None, outputs: Output | None) -> Sequence[Microbatch]:
        """On this rank alone, with all that may be wrong here."""
        self.trainable.check()
        require_mirrorable(self.stages.modules, schedule=self.schedule)
        require_output(outputs)
        microbatches = microbatches_of(batch, number=number, most=self.schedule.num_microbatches)
        self.stages.require_inputs(microbatches)
        return microbatches
