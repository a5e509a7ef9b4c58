"""Some steps of one pipeline with clipping and an optimizer, beside those of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullbore.config.run import OptimizerConfig
from fullbore.models.layered import Objective
from fullbore.models.load import layered
from fullbore.runtime.batch import split_batch
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.runtime.pipeline import Pipeline
from fullbore.verify.reference import Observed, run_reference
from tests.support.pipelines import pipeline_of
from tests.support.ranks import SQUARED_ERROR

SGD = OptimizerConfig(name="sgd", lr=0.05, weight_decay=0.0, clip_norm=0.5)
ADAMW = OptimizerConfig(lr=0.01, clip_norm=1.0)


@dataclass(frozen=True)
class Run:
    """Some steps of one pipeline on one rank, clipped, with an optimizer; and of one process."""

    seen: Observed
    expected: Observed
    """The whole model's."""

    norms: tuple[float, ...]
    copies_equal: tuple[bool, ...]
    """After each step: have all ranks that hold a weight the same bits of it?"""

    changed: int
    """Weights of this rank that are not what they were."""

    num_weights: int
    num_states: int
    """Optimizer tensors of the weights that this rank owns."""

    peak: int


def trained(
    make: Any,
    batch: Mapping[str, Tensor],
    mesh: Mesh,
    *,
    cut: Sequence[int] | str = "equal",
    steps: int = 3,
    microbatches: int = 2,
    optimizer: OptimizerConfig = SGD,
    objective: Objective = SQUARED_ERROR,
    **more: Any,
) -> Run:
    pipeline = pipeline_of(make(), mesh, microbatches=microbatches, objective=objective, layers_per_stage=cut, **more)
    update = MasterOptimizer(pipeline.weights(), config=optimizer)
    initial = copies_of(pipeline.weights())
    everywhere = {k: v for part in mesh.gather({**initial, **copies_of(pipeline.buffers())}) for k, v in part.items()}
    losses, norms, equal, first = [], [], [], {}
    for step in range(steps):
        losses.append(pipeline.step(batch))
        first = first if step else copies_of(pipeline.gradients())
        norms.append(pipeline.clip_grad_norm(optimizer.clip_norm))
        assert pipeline.finite
        update.step(pipeline.gradients(), lr=optimizer.lr)
        pipeline.zero_grad()
        equal.append(_copies_are_equal(pipeline, mesh))
    seen = Observed(tuple(losses), first, copies_of(pipeline.weights()), copies_of(pipeline.buffers()))
    peak = pipeline.peak_activations
    owned = sum(
        1 for name in update.state() if name.endswith("exp_avg") and pipeline.owns(name.removesuffix(".exp_avg"))
    )
    pipeline.release()
    expected = run_reference(
        layered(make()),
        [split_batch(batch, microbatches)] * steps,
        objective=objective,
        initial=everywhere,
        optimizer=optimizer,
        device=torch.device("cpu"),
    )
    changed = sum(not torch.equal(tensor, initial[name]) for name, tensor in seen.parameters.items())
    return Run(seen, expected, tuple(norms), tuple(equal), changed, len(initial), owned, peak)


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _copies_are_equal(pipeline: Pipeline, mesh: Mesh) -> bool:
    held: dict[str, Tensor] = {}
    for part in mesh.gather(copies_of(pipeline.weights())):
        for name, tensor in part.items():
            if not torch.equal(held.setdefault(name, tensor), tensor):
                return False
    return True
