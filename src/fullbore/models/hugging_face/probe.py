"""The equivalence probe: a tiny copy of the model, cut and compared with itself before anything is trained.

Logits and every gradient, in float64, within 1e-9 of the largest value. Blanks are NaN, so that whatever reads one
shows. A family whose split is not exact is refused with the part in which the first difference appears.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.auxiliary import collecting
from fullbore.models.containers import walk
from fullbore.models.enter import enter
from fullbore.models.hugging_face.cutter import Cut, HuggingFaceStage, cut_out, record
from fullbore.models.hugging_face.flow import Flow
from fullbore.models.hugging_face.pipeline_plan import PipelinePlan
from fullbore.models.hugging_face.task import Task
from fullbore.models.layer import Layer
from fullbore.models.layered import Microbatch
from fullbore.models.tied import WeightNames, name_weights
from fullbore.said import said

__all__ = ["check_split", "probe_cuts"]

TOLERANCE = 1e-9
"""Of the largest value of each tensor."""


@dataclass(frozen=True, slots=True)
class _Run:
    output: Tensor
    parts: Mapping[str, Tensor]
    """What each part returned, the first tensor of it."""

    gradients: Mapping[str, Tensor]


def probe_cuts(plan: PipelinePlan) -> tuple[int, ...]:
    """Where it is enough to cut: behind the embedding, in the middle, where something stands between two lists of
    blocks, and in front of the head."""
    last = len(plan.names) - 1
    between = [at for at in range(2, last) if plan.names[at] not in plan.blocks]
    return tuple(sorted({1, (1 + last) // 2, *between, *(at + 1 for at in between), last}))


def check_split(
    model: Any,
    *,
    plan: PipelinePlan,
    flow: Flow,
    task: Task,
    microbatches: Sequence[Microbatch],
    partitions: Sequence[Sequence[int]],
) -> None:
    """Compare.

    Args:
        model: a tiny copy in float64.
        flow: of this copy.
        partitions: where to cut, each a list of the first layers of the stages after the first.

    Raises:
        ModelError: a split differs from the whole model.
    """
    family = model.config.model_type
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    names = name_weights((*plan.layers(model), plan.shared(model)), known=known)
    for microbatch in microbatches:
        reference = _whole(model, plan, task, microbatch)
        for partition in partitions:
            bounds = itertools.pairwise([0, *partition, len(plan.names)])
            stages = [_Stage.of(model, plan=plan, flow=flow, task=task, first=first, end=end) for first, end in bounds]
            where = " and ".join(plan.names[layer] for layer in partition)
            try:
                found = _split(stages, task, microbatch, names=names)
            except ModelError:
                raise
            except Exception as error:
                raise ModelError(
                    f"{family} cannot be split before {where}: its forward needs more of a module than what that "
                    f"gives ({said(error)})"
                ) from error
            different = _first_difference(found, reference, plan=plan)
            if different is not None:
                raise ModelError(
                    f"{family} cannot be split exactly before {where}: a tiny copy differs from the whole model in "
                    f"{different}"
                )


@dataclass(frozen=True, slots=True)
class _Stage:
    module: HuggingFaceStage
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, model: Any, *, plan: PipelinePlan, flow: Flow, task: Task, first: int, end: int) -> _Stage:
        cut = Cut.of_layers(plan, flow, first=first, end=end)
        piece = cut_out(model, cut, plan=plan, flow=flow, memo={}, blank=float("nan"))
        layers = plan.layers(piece.model)[first:end]
        record(piece, flow=flow)
        return cls(HuggingFaceStage(piece, task=task), layers)


def _whole(model: Any, plan: PipelinePlan, task: Task, microbatch: Microbatch) -> _Run:
    model.zero_grad()
    with torch.enable_grad(), collecting() as added, _outputs(plan.layers(model)) as parts:
        output = task.result(model, model(**task.inputs(model, microbatch)))
        _backward(_loss(output, added, task, microbatch))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return _Run(output.detach(), parts, gradients)


def _split(stages: Sequence[_Stage], task: Task, microbatch: Microbatch, *, names: WeightNames) -> _Run:
    """Forward and backward from stage to stage, cut off from each other as they are on different ranks."""
    crossings: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []
    value: Any = None
    layers = [layer for stage in stages for layer in stage.layers]
    with torch.enable_grad(), collecting() as added, _outputs(layers) as parts:
        for stage in stages:
            if value is not None:
                leaves: list[Tensor] = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in value]
                crossings.append((value, leaves))
                value = tuple(enter(leaf) if leaf.requires_grad else leaf for leaf in leaves)
            given, value = value, stage.module(value, microbatch)
            _disturb(stage, given, microbatch)
        _backward(_loss(value, added, task, microbatch))
    for sent, received in reversed(crossings):
        pairs = [(t, leaf.grad) for t, leaf in zip(sent, received, strict=True) if leaf.grad is not None]
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
    total: dict[str, Tensor] = {}
    for stage in stages:
        held = {id(p): (names.full[key], p) for layer in stage.layers for key, p in layer.parameters()}
        for name, parameter in held.values():
            if parameter.grad is not None:
                total[name] = total[name] + parameter.grad if name in total else parameter.grad
    return _Run(value.detach(), parts, total)


def _disturb(stage: _Stage, carried: Any, microbatch: Microbatch) -> None:
    """Run the stage on other numbers: what it left anywhere but in its output is another stage's to miss."""
    other = {**microbatch, "input_ids": microbatch["input_ids"].flip(1)}
    noisy = None if carried is None else tuple(t + 1 if t.is_floating_point() else t for t in carried)
    with torch.no_grad(), collecting():
        stage.module(noisy, other)


@contextmanager
def _outputs(layers: Sequence[Layer]) -> Iterator[dict[str, Tensor]]:
    """What the parts of the layers return inside, the first time, by name."""
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in (part for layer in layers for part in layer.parts):

        def hook(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            del module, args
            for _, tensor in list(walk(output))[:1]:
                found.setdefault(name, tensor.detach())

        handles.append(module.register_forward_hook(hook))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _loss(output: Tensor, added: Sequence[Tensor], task: Task, microbatch: Microbatch) -> Tensor:
    loss = task.objective.loss_sum(output, microbatch) / task.objective.count(microbatch)
    return loss + sum((value for value in added), start=loss.new_zeros(()))


def _backward(loss: Tensor) -> None:
    """Nothing, where nothing trains: such a model can still be evaluated."""
    if loss.requires_grad:
        torch.autograd.backward(loss)


def _first_difference(found: _Run, reference: _Run, *, plan: PipelinePlan) -> str | None:
    """Where it begins: the first part in the order of the forward, or the last one in that of the backward."""
    for part in plan.called:
        if part in reference.parts and not _close(found.parts.get(part), reference.parts[part]):
            return f"what {part} gives"
    if not _close(found.output, reference.output):
        return "its result"
    wrong = [name for name, given in reference.gradients.items() if not _close(found.gradients.get(name), given)]
    last = max(wrong, key=lambda name: _place(name, plan), default=None)
    return None if last is None else f"the gradient of {last}"


def _place(name: str, plan: PipelinePlan) -> int:
    return max((at for at, part in enumerate(plan.called) if name.startswith(f"{part}.")), default=-1)


def _close(one: Tensor | None, other: Tensor) -> bool:
    if one is None or one.shape != other.shape:
        return False
    largest = max(float(other.abs().max()), 1e-300)
    return bool((one - other).abs().max() <= TOLERANCE * largest)
