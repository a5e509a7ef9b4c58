"""Verify: the pipeline against one process, on real ranks, with the real transport.

Every rank runs a few steps of the configured pipeline and hands in what it holds; rank 0 then runs the
reference and compares losses, every gradient and every parameter. Losses alone prove nothing: known faults keep
the loss and lose the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from fullbore.config.run import OptimizerConfig, RunConfig
from fullbore.errors import ConfigError
from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.models.load import load_model
from fullbore.runtime.batch import split_batch
from fullbore.runtime.launch import Worker
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.session.session import Session, build_pipeline, open_session, tensors
from fullbore.verify.compare import NOISE, compare, vanishing, without, worst
from fullbore.verify.reference import Observed, run_reference
from fullbore.verify.report import TOLERANCES, NotComparable, ScaledGradient, TensorError, Undivided, VerifyReport
from fullbore.verify.stochastic import comparable_config, not_comparable, without_dropout

__all__ = ["verify_rank"]


def verify_rank(
    worker: Worker | None, config: RunConfig, steps: int, fault: ScaledGradient | None
) -> VerifyReport | None:
    """Run and compare; the report on rank 0, None elsewhere.

    Raises:
        InputError: the configuration cannot be run.
        RankFailed: this rank or a neighbour failed.
    """
    session = open_session(worker, config)
    config, notes = comparable_config(config, session.model)
    rank = session.place.mesh.rank
    batches = _batches(session, steps)
    judged = config.optimizer
    if config.model.dtype == "float32":
        judged = msgspec.structs.replace(config.optimizer, name="sgd")
    initial, seen = _run_pipeline(session, config, batches, judged, fault)
    extra: Observed | None = None
    if judged.name != config.optimizer.name:
        _, extra = _run_pipeline(session, config, batches, config.optimizer, None)
    session.place.mesh.close()
    if rank != 0:
        return None
    model, device = _untouched(session, config), session.place.device.torch_device
    objective = model.objective
    assert objective is not None
    slices = session.resolved.recipe.microbatches * session.resolved.recipe.accumulation
    cut = [split_batch(batch, slices) for batch in batches]
    reference = run_reference(model, cut, objective=objective, initial=initial, optimizer=judged, device=device)
    whole = model.build_stage(0, len(model.layer_names), seed=config.train.seed, device=torch.device("cpu"))
    notes += not_comparable(whole.module)
    adamw: tuple[TensorError, ...] = ()
    if extra is not None:
        again = run_reference(
            model, cut, objective=objective, initial=initial, optimizer=config.optimizer, device=device
        )
        adamw = compare(extra.parameters, again.parameters)
    drawn = {name: weight.detach() for name, weight in whole.weights.items()}
    zero = vanishing(reference.gradients, noise=NOISE[config.model.dtype])
    zero = tuple(name for name in zero if name in vanishing(seen.gradients, noise=10 * NOISE[config.model.dtype]))
    if zero:
        why = "zero but for rounding on both sides, and so is every update from them"
        notes.append(NotComparable(f"gradients of {', '.join(zero)}", why))
    report = VerifyReport(
        parity=False,
        tolerance=TOLERANCES[config.model.dtype],
        dtype=config.model.dtype,
        steps=steps,
        loss_relative_error=_loss_error(seen.losses, reference.losses),
        initial_weights=compare({name: initial[name] for name in drawn if name in initial}, drawn),
        gradients=without(compare(seen.gradients, reference.gradients), zero),
        parameters=without(compare(seen.parameters, reference.parameters), zero),
        optimizer=judged.name,
        adamw_parameters=adamw,
        undivided_batch=_undivided(model, batches[0], objective, initial, seen, device),
        not_comparable=tuple(notes),
    )
    return replace(report, parity=not report.failures)


def _untouched(session: Session, config: RunConfig) -> LayeredModel:
    """The configured model once more: a user's module that came with weights is trained in place by a pipeline."""
    return load_model(config.model, vocab_size=session.corpus.vocab_size, seed=config.train.seed)


def _batches(session: Session, steps: int) -> list[dict[str, Tensor]]:
    size = session.resolved.recipe.global_batch
    return [tensors(session.order.draw(step * size, count=size)) for step in range(steps)]


def _run_pipeline(
    session: Session,
    config: RunConfig,
    batches: Sequence[Mapping[str, Tensor]],
    optimizer: OptimizerConfig,
    fault: ScaledGradient | None,
) -> tuple[dict[str, Tensor], Observed]:
    """(initial weights and buffers, what the steps left), merged over ranks; complete on rank 0."""
    pipeline = build_pipeline(replace(session, model=_untouched(session, config)), config)
    for module in pipeline.modules():
        without_dropout(module)
    update = MasterOptimizer(pipeline.weights(), config=optimizer)
    initial = {**_copies(pipeline.weights()), **_copies(pipeline.buffers())}
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for step, batch in enumerate(batches):
        losses.append(pipeline.step(batch))
        gradients = pipeline.gradients()
        if step == 0:
            _inject(fault, gradients, pipeline.mesh.gather(list(gradients)))
            first = _copies(gradients)
        pipeline.clip_grad_norm(optimizer.clip_norm)
        update.step(pipeline.gradients(), lr=optimizer.lr)
        pipeline.zero_grad()
    mine = (initial, first, _copies(pipeline.weights()))
    everyone = pipeline.mesh.gather_on_first(mine)
    pipeline.release()
    merged = [_merged([part[index] for part in everyone]) for index in range(3)]
    return merged[0], Observed(tuple(losses), merged[1], merged[2])


def _copies(tensors_by_name: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors_by_name.items()}


def _merged(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """All ranks' tensors under one roof. Copies of a tied weight must be the same bits, or the difference shows."""
    merged: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            if name in merged and not torch.equal(merged[name], tensor):
                merged[f"{name} (a copy that differs)"] = tensor
            else:
                merged[name] = tensor
    return merged


def _inject(fault: ScaledGradient | None, gradients: Mapping[str, Tensor], names: Sequence[Sequence[str]]) -> None:
    if fault is None:
        return
    known = sorted({name for by_rank in names for name in by_rank})
    if fault.name not in known:
        raise ConfigError(f"no gradient {fault.name!r} to scale; there are {', '.join(known[:8])}, ...")
    if fault.name in gradients:
        gradients[fault.name].mul_(fault.factor)


def _loss_error(losses: Sequence[float], reference: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) if b else abs(a - b) for a, b in zip(losses, reference, strict=True))


def _undivided(
    model: LayeredModel,
    batch: Microbatch,
    objective: Objective,
    initial: Mapping[str, Tensor],
    seen: Observed,
    device: torch.device,
) -> Undivided:
    """The first step's batch in one piece."""
    once = run_reference(
        model, [[batch]], objective=objective, initial=initial, optimizer=OptimizerConfig(), device=device
    )
    zero = vanishing(once.gradients, noise=NOISE["float32"])
    gradients = without(compare(seen.gradients, once.gradients), zero)
    return Undivided(_loss_error(seen.losses[:1], once.losses), worst(gradients))
