"""Verify: the pipeline against one process, on real ranks, with the real transport.

Every rank runs a few steps of the configured pipeline and hands in what it holds; rank 0 then runs the
reference and compares losses, every gradient and every parameter. Losses alone prove nothing: known faults keep
the loss and lose the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from fullbore.config.run import OptimizerConfig, RunConfig
from fullbore.errors import ConfigError, ModelError
from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.models.load import load_model
from fullbore.runtime.optimizer import MasterOptimizer
from fullbore.runtime.processes.launch import Worker
from fullbore.session.session import Session, build_pipeline, microbatches, open_session, require_training
from fullbore.verify.compare import NOISE, TOLERANCES, compare, vanishing, without, worst
from fullbore.verify.fault import ScaledGradient
from fullbore.verify.reference import Observed, copies, run_reference
from fullbore.verify.report import NotComparable, TensorError, Undivided, VerifyReport
from fullbore.verify.stochastic import Randomness, comparable_config, not_comparable, probe_randomness

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
    require_training(session)
    config, notes = comparable_config(config)
    slices = session.resolved.recipe.microbatches * session.resolved.recipe.accumulation
    batches = [_batch(session, step, pieces=slices) for step in range(steps)]
    session.place.tell("looking for randomness")
    session.place.say("looking for randomness")
    randomness = _probe(session, config, batches[0][0])
    notes += randomness.notes
    training = randomness.unkeyed is None
    judged = config.optimizer
    if config.model.dtype == "float32":
        judged = msgspec.structs.replace(config.optimizer, name="sgd")
    initial, seen = _run_pipeline(session, config, batches, judged, fault, training=training)
    extra: Observed | None = None
    if judged.name != config.optimizer.name:
        _, extra = _run_pipeline(session, config, batches, config.optimizer, None, training=training)
    session.place.mesh.close()
    if session.place.mesh.rank != 0:
        return None
    if session.place.board is not None:
        session.place.board.unhurried(0, "comparing with one process")  # the whole model, and nobody waits for it
    model = _untouched(session, config)
    refer = partial(
        run_reference,
        model,
        objective=_objective(model),
        initial=initial,
        device=session.place.device.torch_device,
        seed=config.train.seed,
        training=training,
    )
    reference = refer(batches, optimizer=judged, at_step=_telling(session, "reference", judged, steps=steps))
    adamw: tuple[TensorError, ...] = ()
    if extra is not None:
        told = _telling(session, "reference", config.optimizer, steps=steps)
        again = refer(batches, optimizer=config.optimizer, at_step=told)
        adamw = compare(extra.parameters, again.parameters)
    whole = model.build_stage(0, len(model.layer_names), seed=config.train.seed, device=torch.device("cpu"))
    notes += not_comparable(whole.module)
    drawn = {name: weight.detach() for name, weight in whole.weights.items()}
    zero = vanishing(reference.gradients, noise=NOISE[config.model.dtype])
    zero = tuple(name for name in zero if name in vanishing(seen.gradients, noise=10 * NOISE[config.model.dtype]))
    if zero:
        why = "zero but for rounding on both sides, and so is every update from them"
        notes.append(NotComparable(f"gradients of {', '.join(zero)}", why))
    undivided: Undivided | None = None
    if not randomness.keyed:
        alone = config.data.documents != "joined"
        batch = _batch(session, 0, pieces=session.resolved.recipe.global_batch if alone else 1)
        how = "each document alone" if alone else "the batch undivided"
        session.place.say(f"reference: {how}")
        undivided = _undivided(refer([batch], optimizer=OptimizerConfig()), seen, how=how)
    report = VerifyReport(
        parity=False,
        tolerance=TOLERANCES[config.model.dtype],
        dtype=config.model.dtype,
        steps=steps,
        loss_errors=_loss_errors(seen.losses, reference.losses),
        initial_weights=compare({name: initial[name] for name in drawn if name in initial}, drawn),
        gradients=without(compare(seen.gradients, reference.gradients), zero),
        parameters=without(compare(seen.parameters, reference.parameters), zero),
        buffers=compare(_changed(seen.buffers, initial), _changed(reference.buffers, initial)),
        optimizer=judged.name,
        adamw_parameters=adamw,
        undivided_batch=undivided,
        not_comparable=tuple(notes),
    )
    return replace(report, parity=not report.failures)


def _telling(session: Session, what: str, optimizer: OptimizerConfig, *, steps: int) -> Callable[[int], None]:
    """Says which step has begun: of a large model each takes minutes."""
    return lambda step: session.place.say(f"{what}: step {step} of {steps} with {optimizer.name}")


def _changed(buffers: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without constants. What changed on one side alone is infinitely far."""
    return {name: b for name, b in buffers.items() if name not in initial or not torch.equal(b, initial[name])}


def _objective(model: LayeredModel) -> Objective:
    objective = model.objective
    assert objective is not None, "a configured model has a loss"
    return objective


def _probe(session: Session, config: RunConfig, microbatch: Microbatch) -> Randomness:
    """Rank 0 runs the unsplit model a few times, and all ranks do what it has found."""
    found: Randomness | ModelError | None = None
    if session.place.mesh.rank == 0:
        model, device = _untouched(session, config), session.place.device.torch_device
        built = model.build_stage(0, len(model.layer_names), seed=config.train.seed, device=torch.device("cpu"))
        try:
            found = probe_randomness(
                model,
                microbatch,
                objective=_objective(model),
                values={**built.weights, **built.buffers},
                device=device,
            )
        except ModelError as error:
            found = error
    found = session.place.mesh.gather(found)[0]
    if isinstance(found, ModelError):
        raise found
    assert found is not None
    return found


def _untouched(session: Session, config: RunConfig) -> LayeredModel:
    """The configured model once more: a user's module that came with weights is trained in place by a pipeline."""
    return load_model(config.model, vocab_size=session.corpus.vocab_size, seed=config.train.seed)


def _batch(session: Session, step: int, *, pieces: int) -> list[dict[str, Tensor]]:
    """The microbatches of a step."""
    size = session.resolved.recipe.global_batch
    return microbatches(session.order, step * size, count=size, num_microbatches=pieces)


def _run_pipeline(
    session: Session,
    config: RunConfig,
    batches: Sequence[Sequence[Microbatch]],
    optimizer: OptimizerConfig,
    fault: ScaledGradient | None,
    *,
    training: bool,
) -> tuple[dict[str, Tensor], Observed]:
    """(initial weights and buffers, what the steps left), merged over ranks; complete on rank 0."""
    pipeline = build_pipeline(replace(session, model=_untouched(session, config)), config)
    for module in pipeline.modules() if not training else ():
        module.eval()
    update = MasterOptimizer(pipeline.weights(), config=optimizer)
    initial = {**copies(pipeline.weights()), **copies(pipeline.buffers())}
    told = _telling(session, "pipeline", optimizer, steps=len(batches))
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for step, batch in enumerate(batches):
        told(step + 1)
        losses.append(pipeline.step(batch))
        gradients = pipeline.gradients()
        if step == 0:
            _inject(fault, gradients, pipeline.mesh.gather(list(gradients)))
            first = copies(gradients)
        pipeline.clip_grad_norm(optimizer.clip_norm)
        update.step(pipeline.gradients(), lr=optimizer.lr)
        pipeline.zero_grad()
    mine = (initial, first, copies(pipeline.weights()), copies(pipeline.buffers()))
    everyone = pipeline.mesh.gather_on_first(mine)
    pipeline.release()
    merged = [_merged([part[index] for part in everyone]) for index in range(4)]
    return merged[0], Observed(tuple(losses), merged[1], merged[2], merged[3])


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


def _loss_errors(losses: Sequence[float], reference: Sequence[float]) -> tuple[float, ...]:
    return tuple(abs(a - b) / abs(b) if b else abs(a - b) for a, b in zip(losses, reference, strict=True))


def _undivided(once: Observed, seen: Observed, *, how: str) -> Undivided:
    """``once``: the first step's batch in one piece; documents each alone, as that is what grouping must not change."""
    zero = vanishing(once.gradients, noise=NOISE["float32"])
    gradients = without(compare(seen.gradients, once.gradients), zero)
    return Undivided(how, _loss_errors(seen.losses[:1], once.losses)[0], worst(gradients))
