"""Steps of a pipeline beside the same microbatches in one process, by plain autograd."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from tests.support.pipelines import pipeline_of


@dataclass(frozen=True)
class Trained:
    """What steps of one pipeline came to on one rank, and on one process that ran the same microbatches."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]
    """Added up over the steps; this rank's."""

    expected_losses: tuple[float, ...]
    expected: dict[str, Tensor]
    """The whole model's."""


def one_process(
    model: LayeredModel, weights: Mapping[str, Tensor], batches: Sequence[Sequence[Microbatch]], objective: Objective
) -> tuple[tuple[float, ...], dict[str, Tensor]]:
    """Plain autograd over the same microbatches, gradients added up over the batches."""
    whole = model.whole()
    names = dict(whole.module.named_parameters())
    with torch.no_grad():
        for name, weight in names.items():
            weight.copy_(weights[name])
    losses = []
    for microbatches in batches:
        count = sum(objective.count(microbatch) for microbatch in microbatches)
        sums = [objective.loss_sum(whole.call(microbatch), microbatch) for microbatch in microbatches]
        torch.autograd.backward([loss_sum / count for loss_sum in sums])
        losses.append(sum(float(loss_sum.detach()) for loss_sum in sums) / count)
    return tuple(losses), {name: weight.grad for name, weight in names.items() if weight.grad is not None}


def all_weights(pipeline: Pipeline) -> dict[str, Tensor]:
    by_rank = pipeline.mesh.gather({name: w.detach().clone() for name, w in pipeline.weights().items()})
    return {name: weight for weights in by_rank for name, weight in weights.items()}


def train(
    model: LayeredModel, mesh: Mesh, batches: Sequence[Sequence[Microbatch]], *, objective: Objective, **more: Any
) -> Trained:
    """Steps without forgetting the gradients in between, here and in one process."""
    reference = copy.deepcopy(model)
    pipeline = pipeline_of(model, mesh, objective=objective, **more)
    weights = all_weights(pipeline)
    losses = tuple(pipeline.step(batch) for batch in batches)
    gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
    pipeline.release()
    expected_losses, expected = one_process(reference, weights, batches, objective)
    return Trained(losses, gradients, expected_losses, expected)
