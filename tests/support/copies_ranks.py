"""What ranks see of a model that is held twice, under schedules of two streams."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.ir.placement import Placement
from fullbore.models.next_token import next_token_objective
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.runtime.pipeline import Pipeline
from tests.support import chains
from tests.support.batch_models import llama
from tests.support.number_models import Normed, language_model, mlp4, next_tokens
from tests.support.pipelines import pipeline_of
from tests.support.ranks import SQUARED_ERROR
from tests.support.refused import refused
from tests.support.split_ranks import adapted
from tests.support.trained_run import ADAMW, SGD, Run, copies_of, trained
from tests.support.two_ways import shuffled_streams

SCHEDULES = ("dualpipe", "chimera")
MICROBATCHES = 8


def both_ways(model: Any, mesh: Mesh, *, schedule: Any = "dualpipe", **more: Any) -> Pipeline:
    """Under another schedule one way, for comparison."""
    return pipeline_of(
        model, mesh, schedule=schedule, **{"microbatches": MICROBATCHES, "objective": SQUARED_ERROR, **more}
    )


class Sometimes(nn.Module):
    """A weight that only samples of one sign use, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seldom = nn.Parameter(torch.full((8,), 0.5))
        self.never = nn.Parameter(torch.ones(3, 3))

    def forward(self, value: Tensor) -> Tensor:
        hidden: Tensor = self.linear(value)
        return hidden * self.seldom if value.is_meta or bool(value.sum() > 0) else hidden


def sometimes() -> nn.Sequential:
    torch.manual_seed(9)
    return nn.Sequential(*(nn.Sequential(Sometimes(), nn.Tanh()) for _ in range(4))).double()


def dropped() -> nn.Sequential:
    torch.manual_seed(9)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*layers).double()


def frozen() -> nn.Sequential:
    torch.manual_seed(9)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    layers[0].requires_grad_(False)
    layers[2].requires_grad_(False)
    return nn.Sequential(*layers).double()


def _llama_batch() -> dict[str, Tensor]:
    drawn = next_tokens()
    return {"input_ids": drawn["inputs"] % 61, "labels": drawn["labels"] % 61}


def _adapted() -> Any:
    return adapted().double()


def every_model(mesh: Mesh) -> dict[tuple[str, str], Run]:
    """Three steps of each model, of some under both schedules, and of one process."""
    language: dict[str, Any] = {"optimizer": ADAMW, "objective": next_token_objective()}
    blocks = [f"layers.{index}" for index in range(4)]
    cases: dict[str, tuple[Any, dict[str, Tensor], dict[str, Any]]] = {
        "tied": (language_model, next_tokens(), language),
        "tied, recomputed": (language_model, next_tokens(), {**language, "recompute": ["1", "2", "3", "4"]}),
        "untied": (lambda: language_model(tied=False), next_tokens(), language),
        "auxiliary loss": (mlp4, chains.batch(), {"optimizer": SGD}),
        "frozen": (frozen, chains.batch(), {"optimizer": ADAMW}),
        "trees": (lambda: chains.made("encoder and decoder"), chains.batch(), {"optimizer": SGD}),
        "dropout": (dropped, chains.batch(), {"optimizer": SGD}),
        "dropout, recomputed": (dropped, chains.batch(), {"optimizer": SGD, "recompute": ["0", "1", "2", "3"]}),
        "used sometimes": (sometimes, chains.batch(), {"optimizer": ADAMW}),
        "llama": (lambda: llama(tie_word_embeddings=True), _llama_batch(), {**language, "recompute": blocks}),
        "adapters": (_adapted, _llama_batch(), {"optimizer": ADAMW, "objective": next_token_objective()}),
    }
    return {
        (name, schedule): trained(make, batch, mesh, microbatches=MICROBATCHES, schedule=schedule, **more)
        for name, (make, batch, more) in cases.items()
        for schedule in (SCHEDULES if name in ("tied", "untied", "dropout, recomputed") else SCHEDULES[:1])
    }


def two_steps_that_add_up(mesh: Mesh) -> list[dict[str, Tensor]]:
    """Gradients after two steps without forgetting the first: of two streams, and of one on the same ranks."""
    found = []
    for schedule in ("dualpipe", "1f1b"):
        pipeline = both_ways(language_model(), mesh, schedule=schedule, objective=next_token_objective())
        for seed in (1, 2):
            pipeline.step(next_tokens(seed=seed))
        found.append(everyones(pipeline))
        pipeline.release()
    return found


def everyones(pipeline: Pipeline) -> dict[str, Tensor]:
    by_rank = pipeline.mesh.gather(copies_of(pipeline.gradients()))
    return {name: gradient for gradients in by_rank for name, gradient in gradients.items()}


@dataclass(frozen=True)
class Looked:
    """Losses and outputs of one pipeline."""

    evaluated: float
    loss: float
    outputs: list[list[float]]
    """The inputs' first column, of the step and of the evaluation: which microbatch is which."""

    asked_again: list[Tensor]


def outputs_in_order(mesh: Mesh) -> dict[str, Looked]:
    """Numbers of samples from 1 to 5, evaluated in five microbatches and trained in eight."""
    found = {}
    for schedule in (*SCHEDULES, "1f1b"):
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).double()
        pipeline = both_ways(model, mesh, schedule=schedule)
        rows = [1 + index % 5 for index in range(MICROBATCHES)]
        batch = [
            {name: torch.full((count, 8), float(index)).double() for name in ("inputs", "targets")}
            for index, count in enumerate(rows)
        ]
        outputs = []
        evaluated = pipeline.evaluate(batch[:5], outputs=lambda output, one: one["inputs"][:, 0])
        outputs.append([float(value) for tensor in pipeline.outputs() for value in tensor])
        loss = pipeline.step(batch, outputs=lambda output, one: one["inputs"][:, 0])
        outputs.append([float(value) for tensor in pipeline.outputs() for value in tensor])
        found[schedule] = Looked(evaluated, loss, outputs, pipeline.outputs())
        pipeline.release()
    return found


@dataclass(frozen=True)
class Survived:
    """A float16 run in which, once, the gradients of a single copy of a weight are infinite."""

    finite: tuple[bool, ...]
    scales: tuple[float, ...]
    untouched: bool
    equal: bool
    """All copies after the last step, bit by bit, master weights too."""

    changed: bool


def float16_with_a_skipped_step(mesh: Mesh) -> Survived:
    pipeline = both_ways(language_model(dtype=torch.float16), mesh, objective=next_token_objective())
    update = MasterOptimizer(pipeline.weights(), config=ADAMW)
    first = copies_of(pipeline.weights())
    finite, scales, untouched = [], [], True
    for step in range(4):
        before = copies_of(pipeline.weights())
        one = next(iter(pipeline.weights().values()))
        factor = math.inf if step == 2 and mesh.rank == mesh.num_ranks - 1 else 1.0
        hook = one.register_hook(lambda gradient, factor=factor: gradient * factor)
        pipeline.step(next_tokens(seed=step))
        hook.remove()
        pipeline.clip_grad_norm(1.0)
        finite.append(pipeline.finite)
        assert pipeline.loss_scaler is not None
        scales.append(pipeline.loss_scaler.scale)
        if pipeline.finite:
            update.step(pipeline.gradients(), lr=0.01)
        else:
            untouched = untouched and all(torch.equal(w, before[n]) for n, w in pipeline.weights().items())
        pipeline.zero_grad()
    held = {**copies_of(pipeline.weights()), **update.state()}
    merged: dict[str, Tensor] = {}
    equal = all(torch.equal(merged.setdefault(n, t), t) for part in mesh.gather(held) for n, t in part.items())
    changed = any(not torch.equal(weight, first[name]) for name, weight in pipeline.weights().items())
    pipeline.release()
    return Survived(tuple(finite), tuple(scales), untouched, equal, changed)


class Projected(nn.Module):
    """Has a buffer that its author draws and nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("drawn", torch.randn(8, 8))

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.linear(value) @ self.drawn
        return output


def projected() -> nn.Sequential:
    """Another one each time."""
    return nn.Sequential(*(Projected() for _ in range(4))).double()


def different_modules(mesh: Mesh) -> tuple[float, dict[str, Tensor], dict[str, bool]]:
    """A user's module that was drawn without a seed: another one on every rank until it is a pipeline. Weights and
    buffers."""
    torch.manual_seed(100 + mesh.rank)
    pipeline = both_ways(projected(), mesh)
    weights = {**copies_of(pipeline.weights()), **copies_of(pipeline.buffers())}
    owned = {name: pipeline.owns(name) for name in pipeline.weights()}
    loss = pipeline.step(chains.batch())
    pipeline.release()
    return loss, weights, owned


class Unusual(nn.Module):
    """Draws buffers that not every operation takes: one that repeats itself and a conjugated one."""

    def __init__(self, changed: str | None) -> None:
        """``changed``: the buffer that a forward changes."""
        super().__init__()
        self.changed = changed
        self.linear = nn.Linear(8, 8)
        self.register_buffer("repeated", torch.randn(8, 1).double().expand(8, 8))
        self.register_buffer("conjugated", torch.randn(8, dtype=torch.complex128).conj())

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.linear(value) @ self.repeated * self.conjugated.imag
        if self.changed is not None:
            setattr(self, self.changed, 2 * getattr(self, self.changed))
        return output


def unusual_buffers(mesh: Mesh) -> tuple[dict[str, Tensor], list[float], list[str]]:
    """The buffers of a pipeline whose ranks drew different ones, and the loss of its first step; and what is said of
    that step, of one that changes either, of a layout that cannot be shared, and of copies of different forms."""
    held: dict[str, Tensor] = {}
    losses: list[float] = []

    def step(changed: str | None) -> None:
        torch.manual_seed(100 + mesh.rank)
        model = nn.Sequential(nn.Linear(8, 8), Unusual(changed), nn.Linear(8, 8), nn.Linear(8, 8)).double()
        if changed == "form" and mesh.rank >= mesh.num_ranks // 2:  # where the other copy of the layer is
            model[1].register_buffer("repeated", torch.randn(8, 8).double())
        if changed == "sparse":
            model[1].register_buffer("sparse", torch.eye(8).double().to_sparse())
        pipeline = both_ways(model, mesh)
        if changed is None:
            held.update(copies_of(pipeline.buffers()))
        losses.append(pipeline.step(chains.batch()))
        pipeline.release()

    cases = (None, "repeated", "conjugated", "sparse", "form")
    return held, losses, [refused(partial(step, changed)) for changed in cases]


class Averaging(nn.Module):
    """Writes what it sees into a buffer, as no module of torch's that could be known by its class."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        with torch.inference_mode():  # such a tensor counts no versions
            self.register_buffer("ones", torch.ones(8, dtype=torch.float64))

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.linear(value) + self.ones
        before = 0.0 if self.mean is None else self.mean
        seen = 0.9 * before + 0.1 * output.detach().mean(0)
        match self.how:
            case "replaced":
                self.mean = seen
            case "in place":
                self.mean.copy_(seen)
            case "unseen":
                self.mean.data.copy_(seen)
            case "evaluating" if not self.training:
                self.mean = seen
            case "removed":
                self.mean = None
            case "the same":
                self.mean = torch.zeros_like(self.mean)
        return output


@dataclass(frozen=True, slots=True)
class Written:
    """What is said of a forward that writes into a buffer, in an evaluation, a step and one more."""

    said: tuple[str, ...]
    losses: tuple[float, ...]
    """Of those that were not refused."""

    one_way: float
    """The loss in one direction, which may write."""


WAYS = ("replaced", "in place", "unseen", "evaluating", "removed", "the same")


def refused_writes(mesh: Mesh) -> dict[str, Written]:
    """By the way in which it is written."""
    return {how: _written(how, mesh) for how in WAYS}


def _written(how: str, mesh: Mesh) -> Written:
    losses: list[float] = []
    model = nn.Sequential(nn.Linear(8, 8), Averaging(how), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    pipeline = both_ways(copy.deepcopy(model), mesh)
    calls = (pipeline.evaluate,) * (how == "evaluating") + (pipeline.step, pipeline.step)
    said = tuple(refused(lambda call=call: losses.append(call(chains.batch()))) for call in calls)
    pipeline.release()
    one_way = both_ways(model, mesh, schedule="1f1b")
    written = Written(said, tuple(losses), one_way.step(chains.batch()))
    one_way.release()
    return written


class Clamped(nn.Linear):
    """Writes into its own weight, as no module of torch's that could be known by its class."""

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(max=value.abs().max())
        return super().forward(value)


def refused_weights(mesh: Mesh) -> tuple[str, str, str, float]:
    """What every rank says of forwards that write into a weight: of a class that is known, at once; of any other in the
    first step and after it; and the loss in one direction, which may."""

    def model(last: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), last).double()

    known = nn.Sequential(nn.Embedding(61, 8, max_norm=1.0), *(nn.Linear(8, 8) for _ in range(3)))
    said = [refused(lambda: both_ways(known, mesh))]
    pipeline = both_ways(model(Clamped(8, 8)), mesh)
    said += [refused(lambda: pipeline.step(chains.batch())) for _ in range(2)]
    pipeline.release()
    torch.manual_seed(1)
    one_way = both_ways(model(Clamped(8, 8)), mesh, schedule="gpipe")
    loss = one_way.evaluate(chains.batch())
    one_way.release()
    return said[0], said[1], said[2], loss


def refusals(mesh: Mesh) -> list[str]:
    """What every rank says of models and schedules that cannot be run in both directions, and of a step of a model that
    could when the pipeline was built."""
    plain = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).double()
    counting = nn.Sequential(nn.Linear(8, 8), Normed(), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    still = nn.Sequential(nn.Linear(8, 8), Normed().eval(), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    partly = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).double()
    partly[0].requires_grad_(mesh.rank != mesh.num_ranks - 1)
    one_way = shuffled_streams(Placement.bidirectional(mesh.num_ranks), num_microbatches=1, split=False, seed=0)
    said = [refused(partial(both_ways, model, mesh)) for model in (counting, partly)]
    said.append(refused(lambda: both_ways(plain, mesh, schedule=one_way, microbatches=1)))
    pipeline = both_ways(still, mesh)
    for module in pipeline.modules():
        module.train()
    said.append(refused(lambda: pipeline.step(chains.batch())))
    pipeline.release()
    return said
