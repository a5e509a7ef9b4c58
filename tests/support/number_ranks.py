"""What ranks see of the numbers: gradients, norms, skipped steps, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.config.run import OptimizerConfig
from fullbore.models.layered import Objective
from fullbore.models.load import layered
from fullbore.models.next_token import next_token_objective
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.optimizer import MasterOptimizer
from tests.support import chains
from tests.support.kept_bytes import Kept
from tests.support.number_models import Normed, language_model, mlp4, next_tokens
from tests.support.pipelines import pipeline_of
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model
from tests.support.refused import refused
from tests.support.trained_run import ADAMW, SGD, Run, copies_of, trained


def auxiliary_losses(mesh: Mesh) -> dict[int, Run]:
    return {m: trained(mlp4, chains.batch(), mesh, microbatches=m) for m in (1, 4)}


def sum_over_a_given_count(mesh: Mesh) -> tuple[float, dict[str, Tensor]]:
    """A sum over the microbatch, and the total of 4 that the user knows."""
    per_sample = Objective(
        loss_sum=lambda output, batch: ((output - batch["targets"]) ** 2).sum(),
        count=lambda batch: len(batch["inputs"]),
    )
    pipeline = pipeline_of(chain_model(), mesh, objective=per_sample)
    seen = pipeline.step(chain_batch()), copies_of(pipeline.gradients())
    pipeline.release()
    return seen


def tied_copies(mesh: Mesh) -> Run:
    return trained(
        language_model, next_tokens(), mesh, steps=20, microbatches=4, optimizer=ADAMW, objective=next_token_objective()
    )


def clipped_in_float32(mesh: Mesh) -> Run:
    return trained(
        lambda: language_model(dtype=torch.float32),
        next_tokens(),
        mesh,
        steps=20,
        microbatches=4,
        optimizer=OptimizerConfig(name="sgd", lr=0.05, weight_decay=0.0, clip_norm=0.05),
        objective=next_token_objective(),
    )


def every_part_trains(mesh: Mesh) -> Run:
    return trained(
        lambda: language_model(tied=False),
        next_tokens(),
        mesh,
        steps=5,
        microbatches=2,
        optimizer=ADAMW,
        objective=next_token_objective(),
    )


def frozen_stages(mesh: Mesh) -> dict[str, Run]:
    def frozen(*layers: int) -> Any:
        def make() -> nn.Sequential:
            torch.manual_seed(3)
            module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))).double()
            for layer in layers:
                module[layer].requires_grad_(False)
            return module

        return make

    def without_parameters() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Tanh(), nn.Tanh()).double()

    cases = {"tanh": without_parameters, "last": frozen(2, 3), "first": frozen(0, 1), "between": frozen(1, 2)}
    return {
        name: trained(make, chains.batch(), mesh, cut=[2, 2], optimizer=optimizer)
        for name, make in cases.items()
        for optimizer in (SGD,)
    }


def frozen_afterwards(mesh: Mesh) -> list[str]:
    """What a step says after a weight of the last rank was frozen, and after one of the first was unfrozen."""
    said = []
    for rank, before in ((mesh.num_ranks - 1, True), (0, False)):
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).double()
        module[0].requires_grad_(before)
        pipeline = pipeline_of(module, mesh, objective=SQUARED_ERROR)
        if mesh.rank == rank:
            for weight in pipeline.weights().values():
                weight.requires_grad_(not before)
        said.append(refused(partial(pipeline.step, chains.batch())))
        pipeline.release()
    return said


def trees(mesh: Mesh) -> dict[tuple[str, int], Run]:
    """Every kind of chain at every cut in two."""
    found = {}
    for name in chains.CHAINS:
        layers = len(layered(chains.made(name)).layer_names)
        for cut in range(1, layers):
            steps = 5 if name == "in-place ReLU" else 2
            found[name, cut] = trained(
                lambda name=name: chains.made(name), chains.batch(), mesh, cut=[cut, layers - cut], steps=steps
            )
    return found


def peaks(mesh: Mesh) -> dict[tuple[str, int], int]:
    """Most stage-microbatches alive on this rank."""
    found = {}
    for schedule in ("1f1b", "gpipe"):
        for microbatches in (1, 2, 8):
            pipeline = pipeline_of(
                nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).double(),
                mesh,
                microbatches=microbatches,
                schedule=schedule,
                objective=SQUARED_ERROR,
            )
            pipeline.step(chains.batch())
            found[schedule, microbatches] = pipeline.peak_activations
            pipeline.release()
    return found


def narrow_gradients(mesh: Mesh) -> float:
    """The largest relative error of a bfloat16 model's gradients over 64 microbatches that are all alike."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).bfloat16()
    row = torch.randn(1, 8).bfloat16()
    batch = {"inputs": row.repeat(64, 1), "targets": torch.ones(64, 8).bfloat16()}
    found = []
    for microbatches, samples in ((64, 64), (1, 1)):
        pipeline = pipeline_of(module, mesh, microbatches=microbatches, objective=SQUARED_ERROR)
        pipeline.step({name: tensor[:samples] for name, tensor in batch.items()})
        found.append(copies_of(pipeline.gradients()))
        pipeline.release()
    many, once = found
    worst = max(float((many[n] - once[n]).abs().max() / once[n].abs().max()) for n in once)
    return mesh.max([worst])[0]


@dataclass(frozen=True)
class Skipped:
    """A step with something infinite, between two that count; by rank."""

    finite: tuple[bool, ...]
    untouched: bool
    """Weights, optimizer state and running statistics are bit by bit what they were before it."""

    went_on: bool
    """The step after it changed every trainable weight."""

    counters: tuple[float, ...]
    """AdamW's step counts at the end."""


def a_step_is_skipped(mesh: Mesh) -> dict[str, Skipped]:
    return {where: _skip(mesh, where) for where in ("input", "gradient of stage 1", "target")}


def _skip(mesh: Mesh, where: str) -> Skipped:
    torch.manual_seed(4)
    pipeline = pipeline_of(nn.Sequential(Normed(), Normed()).double(), mesh, objective=SQUARED_ERROR)
    update = MasterOptimizer(pipeline.weights(), config=ADAMW)
    held = lambda: [*pipeline.weights().values(), *update.state().values(), *pipeline.buffers().values()]  # noqa: E731
    finite, untouched, went_on = [], False, False
    for step in range(3):
        batch = {name: tensor.clone() for name, tensor in chains.batch().items()}
        if step == 1 and where != "gradient of stage 1":
            batch["inputs" if where == "input" else "targets"][5, 2] = math.inf if where == "input" else math.nan
        before = [tensor.detach().clone() for tensor in held()]
        pipeline.step(batch)
        if step == 1 and where == "gradient of stage 1" and mesh.rank == 1:
            next(iter(pipeline.gradients().values()))[0] = math.inf
        pipeline.clip_grad_norm(1.0)
        finite.append(pipeline.finite)
        if pipeline.finite:
            update.step(pipeline.gradients(), lr=0.01)
        pipeline.zero_grad()
        same = [torch.equal(now, then) for now, then in zip(held(), before, strict=True)]
        untouched = all(same) if step == 1 else untouched
        went_on = not any(same[: len(pipeline.weights())])
    counters = tuple(float(v) for name, v in update.state().items() if name.endswith(".step"))
    pipeline.release()
    return Skipped(tuple(finite), untouched, went_on, counters)


@dataclass(frozen=True)
class Half:
    """A float16 run."""

    losses: tuple[float, ...]
    scales: tuple[float, ...]
    finite: tuple[bool, ...]
    dtypes: set[torch.dtype]
    state: dict[str, float]


def float16(mesh: Mesh) -> Half:
    """Twelve steps; the scale starts so high that the first ones overflow on one of the stages."""
    pipeline = pipeline_of(language_model(dtype=torch.float16), mesh, microbatches=4, objective=next_token_objective())
    assert pipeline.loss_scaler is not None
    pipeline.loss_scaler.load({"scale": 2.0**24, "good_steps": 0.0})
    update = MasterOptimizer(pipeline.weights(), config=ADAMW)
    losses, scales, finite = [], [], []
    for _ in range(16):
        scales.append(pipeline.loss_scaler.scale)
        losses.append(pipeline.step(next_tokens()))
        pipeline.clip_grad_norm(1.0)
        finite.append(pipeline.finite)
        if pipeline.finite:
            update.step(pipeline.gradients(), lr=0.01)
        pipeline.zero_grad()
    dtypes = {gradient.dtype for gradient in update.state().values()}
    state = pipeline.loss_scaler.state()
    pipeline.release()
    return Half(tuple(losses), tuple(scales), tuple(finite), dtypes, state)


def bytes_by_microbatches(mesh: Mesh) -> dict[int, tuple[int, int, int]]:
    """m -> bytes of gradients, of parameters, and the most that autograd kept at once, on this rank; batch 32."""
    found = {}
    for microbatches in (4, 8, 16, 32):
        torch.manual_seed(1)
        module = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(4)))
        pipeline = pipeline_of(module, mesh, microbatches=microbatches, objective=SQUARED_ERROR)
        kept = Kept(pipeline)
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda entry: entry.tensor):
            pipeline.step(
                {
                    "inputs": torch.randn(32, 1024, generator=torch.Generator().manual_seed(2)),
                    "targets": torch.zeros(32, 1024),
                }
            )
        gradients = sum(g.untyped_storage().nbytes() for g in pipeline.gradients().values())
        parameters = sum(w.numel() * 4 for w in pipeline.weights().values())
        found[microbatches] = (gradients, parameters, kept.peak)
        pipeline.release()
    return found
