"""Pipelines that recompute ahead of the backward and inside it, on the same ranks. See `compare_all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullbore.ir.action import Kind
from fullbore.models.layered import Microbatch
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.span import Row
from tests.support.ranks import group
from tests.support.split_ranks import MODELS, batch

BLOCKS = tuple(f"layers.{index}" for index in range(6))


@dataclass(frozen=True)
class Case:
    model: str
    schedule: str
    microbatches: int
    recompute: tuple[str, ...] = BLOCKS
    accumulation: int = 1


@dataclass(frozen=True)
class Ran:
    """Two steps of one rank."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]
    norm: float
    outputs: list[Tensor]
    recomputed: tuple[tuple[Row, str], ...]
    """In the second step: the spans of second forwards, as actions or nested in others."""

    actions: tuple[str, ...]
    """What this rank has to recompute in a step."""

    peak: int
    simulated_peak: int
    peak_held_bytes: int


@dataclass(frozen=True)
class Compared:
    """One rank's view."""

    ahead: Ran
    inside: Ran

    @property
    def different(self) -> tuple[str, ...]:
        """Gradients that have other bits."""
        assert self.ahead.gradients.keys() == self.inside.gradients.keys()
        return tuple(n for n, g in self.inside.gradients.items() if not torch.equal(g, self.ahead.gradients[n]))


def compare_all(worker: Worker, cases: Sequence[Case]) -> list[Compared]:
    mesh = group(worker)
    found = [Compared(*(_two_steps(mesh, case, ahead=ahead) for ahead in (True, False))) for case in cases]
    mesh.close()
    return found


def _kept(output: Any, microbatch: Microbatch) -> Tensor:
    """The best token; of a loss in chunks there are no logits."""
    del microbatch
    return output.argmax(-1) if isinstance(output, Tensor) else torch.zeros(1)


def _two_steps(mesh: Mesh, case: Case, *, ahead: bool) -> Ran:
    pipeline = Pipeline(
        MODELS[case.model](),
        num_microbatches=case.microbatches,
        schedule=case.schedule,
        recompute=case.recompute,
        recompute_ahead=ahead,
        accumulation=case.accumulation,
        seed=5,
        device=CpuDevice(),
        mesh=mesh,
        timeout_s=30.0,
    )
    number = case.microbatches * case.accumulation
    losses = tuple(pipeline.step(batch(case.model, number, seed), outputs=_kept) for seed in (1, 2))
    outputs = pipeline.outputs()
    norm = pipeline.clip_grad_norm(None)
    gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
    spans = pipeline.last_spans()
    again = [(s.row, str(s.action)) for s in spans if s.action is not None and s.action.kind is Kind.RECOMPUTE]
    schedule, rank = pipeline.schedule, pipeline.rank
    actions = tuple(str(action) for action in schedule.orders[rank] if action.kind is Kind.RECOMPUTE)
    peaks = pipeline.peak_activations, peak_activations(schedule)[rank]
    held = pipeline.peak_held_bytes
    pipeline.zero_grad()
    pipeline.release()
    return Ran(losses, gradients, norm, outputs, tuple(again), actions, *peaks, held)
