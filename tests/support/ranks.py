"""What tests run on launched ranks. Each function is a target of `launch`, by name."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fullbore.config.run import RunConfig
from fullbore.ir.recipe import Layout
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import Objective
from fullbore.runtime.clipping import clip, global_norm
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker, launch
from fullbore.runtime.tied import TiedGradients
from fullbore.session.session import store_of
from fullbore.verify.report import VerifyReport
from fullbore.verify.run import verify_rank

PRELOAD = ("torch", "torch.distributed.device_mesh", "transformers", "transformers.models.llama.modeling_llama")

SQUARED_ERROR = Objective(
    loss_sum=lambda output, batch: ((output - batch["targets"]) ** 2).sum(),
    count=lambda batch: batch["targets"].numel(),
)


def on_ranks(function: str, *arguments: Any, num_ranks: int) -> list[Any]:
    """Results by rank of a function of this module."""
    return launch(f"tests.support.ranks:{function}", *arguments, num_ranks=num_ranks, preload=PRELOAD)


@dataclass(frozen=True)
class Stepped:
    """What one rank saw of a few pipelines' first steps."""

    loss: float
    gradients: dict[str, Tensor]
    norm: float
    clipped: dict[str, Tensor]
    inf_norm: float
    peak_activations: int
    initial: dict[str, Tensor]
    num_parameters: int
    """Optimizer entries of this rank."""

    evaluated: float
    """The loss of the same batch in evaluation mode, before the step."""

    peak_held_bytes: int
    layers_per_stage: tuple[int, ...]
    schedule: Schedule


def chain_model() -> nn.Sequential:
    """CHAIN: w1 = 2, w2 = 3, so that loss 270, dL/dw1 270 and dL/dw2 180 for x = 1..4."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for layer, value in zip(model, (2.0, 3.0), strict=True):
            layer.weight.fill_(value)
    return model


def chain_batch() -> dict[str, Tensor]:
    return {"inputs": torch.tensor([[1.0], [2.0], [3.0], [4.0]]), "targets": torch.zeros(4, 1)}


def mlp(num_layers: int) -> nn.Sequential:
    """Linear(8, 8) with tanh in float64, on the meta device: values come from (seed, layer name)."""
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), nn.Tanh()) for _ in range(num_layers)]
        return nn.Sequential(*layers)


def mlp4_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    scale = torch.tensor([1.0, 10.0, 0.1, 3.0], dtype=torch.float64).repeat_interleave(2)[:, None]
    return {
        "inputs": torch.randn(8, 8, generator=generator, dtype=torch.float64) * scale,
        "targets": torch.randn(8, 8, generator=generator, dtype=torch.float64),
    }


class Retied(nn.Module):
    """Layer 0's weight again, in another layer: two stages that one rank holds, or two ranks, or both."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, value: Tensor) -> Tensor:
        return torch.tanh(value @ self.weight)


def tied4() -> nn.Sequential:
    """Four layers in float64 that hold their weights; 0 and 2 share one, 1, 2 and 3 do not."""
    generator = torch.Generator().manual_seed(3)
    weights = [nn.Parameter(torch.randn(8, 8, generator=generator, dtype=torch.float64) / 3) for _ in range(3)]
    return nn.Sequential(Retied(weights[0]), Retied(weights[1]), Retied(weights[0]), Retied(weights[2]))


def tied4_meta() -> nn.Sequential:
    """The same ties, from meta: each stage is built with a copy of its own. Three users of one weight."""
    with torch.device("meta"):
        first, other = (nn.Linear(8, 8, bias=False, dtype=torch.float64) for _ in range(2))
    return nn.Sequential(first, Retied(first.weight), Retied(first.weight), other)


MODELS = {
    "chain": (chain_model, chain_batch),
    "mlp4": (partial(mlp, 4), mlp4_batch),
    "mlp8": (partial(mlp, 8), mlp4_batch),
    "tied4": (tied4, mlp4_batch),
    "tied4-meta": (tied4_meta, mlp4_batch),
}


def first_steps(worker: Worker, model: str, cases: Sequence[tuple[str, int]], max_norm: float) -> list[Stepped]:
    """One step for each (schedule, m), each with a new pipeline on the same group."""
    mesh = group(worker)
    make, batch = MODELS[model]
    seen = []
    for schedule, microbatches in cases:
        pipeline = Pipeline(
            make(),
            num_microbatches=microbatches,
            schedule=schedule,
            objective=SQUARED_ERROR,
            device=CpuDevice(),
            mesh=mesh,
            timeout_s=30.0,
        )
        initial = {name: weight.detach().clone() for name, weight in pipeline.weights().items()}
        evaluated = pipeline.evaluate(batch())
        loss = pipeline.step(batch())
        gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
        inf_norm = pipeline.clip_grad_norm(None, norm_type=math.inf)
        norm = pipeline.clip_grad_norm(max_norm)
        clipped = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
        count, peak = len(list(pipeline.parameters())), pipeline.peak_activations
        held, cut = pipeline.peak_held_bytes, pipeline.layers_per_stage
        seen.append(
            Stepped(
                *(loss, gradients, norm, clipped, inf_norm, peak, initial, count, evaluated),
                *(held, cut, pipeline.schedule),
            )
        )
        pipeline.release()
    mesh.close()
    return seen


def verify_all(worker: Worker, configs: Sequence[RunConfig]) -> list[VerifyReport | None]:
    """`fullbore verify` for many configurations in one group of processes.

    One thread each: these models are so small that a second only waits, and on a busy machine for long.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    return [verify_rank(worker, config, 3, None) for config in configs]


def group(worker: Worker, *, timeout_s: float = 30.0) -> Mesh:
    torch.set_num_threads(1)
    store = store_of(worker) if worker.num_ranks > 1 else None
    return Mesh(Layout(pipeline=worker.num_ranks), device=CpuDevice(), timeout_s=timeout_s, store=store)


@dataclass(frozen=True)
class Tied:
    """One rank's view of a tied scalar and of two gradient norms."""

    reduced: float
    owns: bool
    norm: float
    norms_3_and_4: tuple[float, float]
    """2-norm and infinity norm of gradients 3 on rank 0 and 4 on rank 1."""

    clipped: float
    norm_with_nan: tuple[float, float]
    """2-norm and infinity norm where rank 1's gradient is NaN."""


def tied_scalar(worker: Worker) -> Tied:
    """Two ranks, a tied scalar whose copies have gradients 3 and 4, and an untied one with the same."""
    mesh = group(worker)
    tied = TiedGradients({"w": (0, 1)}, mesh=mesh, timeout_s=30.0)
    own = float(3 + worker.rank)
    alone = [torch.tensor([own])]
    norms = (global_norm(alone, mesh=mesh), global_norm(alone, mesh=mesh, norm_type=math.inf))
    clip(alone, norm=norms[0], max_norm=1.0)
    weight = nn.Parameter(torch.tensor([1.0]))
    weight.grad = torch.tensor([own])
    store = GradientStore({"w": weight})
    tied.reduce(store, weights={"w": weight})
    owned = [gradient for name, gradient in store.gradients().items() if tied.owns(name)]
    broken = [torch.tensor([float("nan") if worker.rank else 1.0])]
    nan_norms = (global_norm(broken, mesh=mesh), global_norm(broken, mesh=mesh, norm_type=math.inf))
    seen = Tied(weight.grad.item(), tied.owns("w"), global_norm(owned, mesh=mesh), norms, alone[0].item(), nan_norms)
    mesh.close()
    return seen


def unseeded_tied(worker: Worker, frozen: bool) -> tuple[list[float], dict[str, Tensor]]:
    """A user's module with a tied weight, built without a seed: other values on every rank until it is a pipeline."""
    mesh = group(worker)
    torch.manual_seed(worker.rank)
    shared = nn.Linear(4, 4, bias=False).requires_grad_(not frozen)
    other = nn.Linear(4, 4, bias=False)
    other.weight = shared.weight
    model = nn.Sequential(shared, nn.Linear(4, 4), other)
    pipeline = Pipeline(
        model, num_microbatches=2, objective=SQUARED_ERROR, device=CpuDevice(), mesh=mesh, layers_per_stage=[2, 1]
    )
    batch = {"inputs": torch.ones(4, 4), "targets": torch.zeros(4, 4)}
    pipeline.step(batch)
    name = next(name for name in pipeline.weights() if name.startswith("0.") or name.startswith("2."))
    seen = ([float(v) for v in pipeline.weights()[name].flatten()], dict(pipeline.gradients()))
    pipeline.close()
    return seen


def reused_after_failure(worker: Worker) -> list[str]:
    """What a pipeline says after its loss raised, and what a batch of another size or a bf16 optimizer gets."""
    mesh = group(worker)

    def broken(output: Tensor, batch: Any) -> Tensor:
        raise ValueError("no loss today")

    said = []
    pipeline = Pipeline(
        chain_model(),
        num_microbatches=2,
        objective=Objective(broken, SQUARED_ERROR.count),
        device=CpuDevice(),
        mesh=mesh,
    )
    for _ in range(2):
        try:
            pipeline.step(chain_batch())
        except ValueError as error:
            said.append(f"{type(error).__name__}: {error}")
        except RuntimeError as error:
            said.append(f"{type(error).__name__}: {error}")
    narrow = Pipeline(
        chain_model().bfloat16(), num_microbatches=2, objective=SQUARED_ERROR, device=CpuDevice(), mesh=mesh
    )
    try:
        list(narrow.parameters())
    except ValueError as error:
        said.append(f"{type(error).__name__}: {error}")
    return said


class AddsInPlace(nn.Module):
    """Overwrites what it is given, as user code may."""

    def forward(self, value: Tensor) -> Tensor:
        value += 1.0
        return torch.relu_(value)


def in_place_at_the_cut(worker: Worker) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """(loss, gradients, weights) of a chain whose second stage overwrites its input."""
    mesh = group(worker)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), AddsInPlace(), nn.Linear(4, 4)).double()
    pipeline = Pipeline(
        model, num_microbatches=2, objective=SQUARED_ERROR, device=CpuDevice(), mesh=mesh, layers_per_stage=[1, 2]
    )
    ones = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)
    loss = pipeline.step({"inputs": ones, "targets": torch.zeros_like(ones)})
    seen = (loss, dict(pipeline.gradients()), {n: w.detach().clone() for n, w in pipeline.weights().items()})
    pipeline.close()
    return seen


def two_steps_of_a_tied_weight(worker: Worker, ranks: int) -> dict[str, Tensor]:
    """Gradients after two steps without forgetting the first."""
    mesh = group(worker)
    torch.manual_seed(5)
    shared, other = nn.Linear(4, 4, bias=False).double(), nn.Linear(4, 4, bias=False).double()
    other.weight = shared.weight
    model = nn.Sequential(shared, nn.Tanh(), other)
    cut = [2, 1] if ranks == 2 else [3]
    pipeline = Pipeline(
        model, num_microbatches=2, objective=SQUARED_ERROR, device=CpuDevice(), mesh=mesh, layers_per_stage=cut
    )
    batch = {"inputs": torch.ones(4, 4).double(), "targets": torch.zeros(4, 4).double()}
    for _ in range(2):
        pipeline.step(batch)
    seen = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
    pipeline.close()
    return seen


def slow_to_compile(worker: Worker) -> list[str]:
    """Two steps and evaluations of layers that are said to compile, which on rank 1 take twice the timeout the first
    time; and a step after them that takes as long."""
    mesh = group(worker, timeout_s=1.0)
    slow = [worker.rank == 1] * 2

    def pretend(layers: Mapping[str, nn.Module], *, device: torch.device) -> Callable[[], None]:
        """A compiler that takes its time at the first forward with gradients, and at the first without."""
        del device

        def wait(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            if slow[torch.is_grad_enabled()] and not given[0].is_meta:
                slow[torch.is_grad_enabled()] = False
                time.sleep(2.0)

        hooks = [layer.register_forward_pre_hook(wait) for layer in layers.values()]

        def undo() -> None:
            for hook in hooks:
                hook.remove()

        return undo

    said = []
    with patch("fullbore.runtime.local_stages.apply_compile", pretend):
        pipeline = Pipeline(
            chain_model(),
            num_microbatches=2,
            objective=SQUARED_ERROR,
            device=CpuDevice(),
            mesh=mesh,
            compile=True,
            timeout_s=1.0,
        )
    for again in (False, True):
        slow[1] = slow[1] or (again and worker.rank == 1)
        for call in (pipeline.evaluate, pipeline.step):
            try:
                said.append(f"{call(chain_batch()):.1f}")
            except RuntimeError as error:
                said.append(type(error).__name__)
    return said


def disagreement(worker: Worker, what: str) -> str:
    """What a pipeline says whose ranks were given different things."""
    mesh = group(worker)
    cut = [1, 3] if what == "cut" and worker.rank else [2, 2]
    try:
        pipeline = Pipeline(
            mlp(4), num_microbatches=2, objective=SQUARED_ERROR, device=CpuDevice(), mesh=mesh, layers_per_stage=cut
        )
        batch = mlp4_batch()
        if what == "batch":
            batch["inputs"] = batch["inputs"] + worker.rank
        if what == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                narrow = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
                pipeline = Pipeline(narrow, num_microbatches=1, objective=SQUARED_ERROR, device=CpuDevice(), mesh=mesh)
                pipeline.step({name: tensor.float() for name, tensor in batch.items()})
        else:
            pipeline.step(batch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
