"""What every rank says to a batch, a model or a cut that cannot be, also where one rank alone was given it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from fullbore.errors import ModelError
from fullbore.models.layered import Microbatch
from fullbore.runtime.mesh import Mesh
from tests.support.batch_models import OUTPUT_SUM, VOCABULARY, llama, ones, tokens
from tests.support.pipelines import pipeline_of
from tests.support.ranks import SQUARED_ERROR
from tests.support.refused import refused


def two_samples_for_four(mesh: Mesh) -> tuple[str, float]:
    """Refused, and the pipeline goes on."""
    pipeline = pipeline_of(ones(), mesh, microbatches=4, objective=OUTPUT_SUM)
    said = refused(lambda: pipeline.step({"inputs": torch.ones(2, 1)}))
    seen = (said, pipeline.step({"inputs": torch.ones(4, 1)}))
    pipeline.release()
    return seen


def each_rank_draws(mesh: Mesh) -> list[str]:
    """What is said to ranks that do not hold the same batch."""
    unseeded = torch.Generator()
    unseeded.seed()
    ids = torch.randint(0, VOCABULARY, (4, 12), generator=unseeded)
    own_numbers = {"input_ids": ids, "labels": ids}
    own_lengths = [tokens(1, 5 + mesh.rank + index, seed=index) for index in range(4)]
    own_count = [tokens(1, 5, seed=index) for index in range(4 + mesh.rank)]
    short_here = {key: tensor[: 4 - 2 * mesh.rank] for key, tensor in tokens(4, 5, seed=1).items()}
    pipeline = pipeline_of(llama(), mesh, microbatches=4)
    said = [refused(lambda b=b: pipeline.step(b)) for b in (own_numbers, own_lengths, own_count, short_here)]
    said.append(refused(lambda: pipeline.evaluate(own_count)))
    if mesh.rank == 1:
        weight = next(iter(pipeline.weights().values()))
        weight.requires_grad_(False)
    said.append(refused(lambda: pipeline.step([tokens(1, 5, seed=index) for index in range(4)])))
    if mesh.rank == 1:
        weight.requires_grad_(True)
    whole = [tokens(1, 5, seed=index) for index in range(4)]
    not_a_function: Any = 5 if mesh.rank == 1 else None
    said.append(refused(lambda: pipeline.step(whole, outputs=not_a_function)))
    said.append(refused(lambda: pipeline.step([{"labels": one["labels"]} for one in whole])))
    pipeline.step([tokens(1, 5, seed=index) for index in range(4)])
    pipeline.release()
    return said


def frozen_on_one_rank(mesh: Mesh) -> list[str]:
    """What is said, in two steps of different sizes, where rank 1 freezes what only rank 0 holds: before the pipeline
    is built, and between the steps."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    said = []
    for freezes_later in (False, True):
        model[0].requires_grad_(mesh.rank == 0 or freezes_later)
        pipeline = pipeline_of(model, mesh, microbatches=2, objective=SQUARED_ERROR)
        for samples in (4, 8):
            batch = {"inputs": torch.ones(samples, 4), "targets": torch.zeros(samples, 4)}
            said.append(refused(partial(pipeline.step, batch)))
            model[0].requires_grad_(mesh.rank == 0)
        pipeline.release()
    return said


class _Drawn(nn.Linear):
    """A layer that refuses to draw its weights. (What is no refusal is not told around: it ends its rank.)"""

    def reset_parameters(self) -> None:
        raise ModelError("the disk is gone")


class _Unreadable(list[Microbatch]):
    def __iter__(self) -> Iterator[Microbatch]:
        raise OSError("the disk is gone")


def one_rank_fails(mesh: Mesh) -> list[str]:
    """What every rank says when rank 1 alone is given a cut that cannot be, refuses to build its stage, and cannot read
    a batch. Then the loss of a step that all can read."""

    with torch.device("meta"):
        layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    if mesh.rank == 1:
        layers[1].__class__ = _Drawn
    cut: Any = [2, 1] if mesh.rank == 1 else "equal"
    found = [refused(lambda: pipeline_of(ones(), mesh, microbatches=2, objective=OUTPUT_SUM, layers_per_stage=cut))]
    found.append(refused(lambda: pipeline_of(nn.Sequential(*layers), mesh, microbatches=2, objective=SQUARED_ERROR)))
    pipeline = pipeline_of(llama(), mesh, microbatches=2)
    whole = [tokens(1, 5, seed=index) for index in range(2)]
    found.append(refused(lambda: pipeline.step(_Unreadable(whole) if mesh.rank == 1 else whole), kind=Exception))
    found.append(f"{pipeline.step(whole):.3f}")
    pipeline.release()
    return found
