"""What ranks see of evaluations between steps, and of outputs that are kept beside the loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullbore.ir.schedule import Schedule
from fullbore.models.next_token import next_token_objective
from fullbore.runtime.mesh import Mesh
from fullbore.schedules.registry import get
from tests.support.batch_models import OUTPUT_SUM, llama, ones, tokens
from tests.support.one_process import all_weights, one_process
from tests.support.pipelines import pipeline_of


@dataclass(frozen=True)
class Evaluated:
    losses: tuple[float, ...]
    weights: dict[str, Tensor]
    """This rank's after the last step."""

    evaluated: tuple[float, ...]
    expected: float
    """Of the first evaluation, by one process."""

    predictions: list[Tensor]
    expected_predictions: list[Tensor]
    asked_again: list[Tensor]
    held_after_evaluation: dict[str, Tensor]
    """Gradients after the evaluation before the first step."""


def evaluated_in_between(mesh: Mesh) -> Evaluated:
    return _run_with_evaluation(mesh, evaluates=True)


def not_evaluated(mesh: Mesh) -> Evaluated:
    return _run_with_evaluation(mesh, evaluates=False)


def _run_with_evaluation(mesh: Mesh, *, evaluates: bool) -> Evaluated:
    """Three steps with dropout and two additions to each gradient; evaluations of 3 microbatches and other sizes."""
    heldout = [tokens(2, 12, seed=index) for index in range(3)]
    torch.manual_seed(0)
    reference = llama()
    pipeline = pipeline_of(llama(attention_dropout=0.1), mesh, microbatches=4)
    optimizer = torch.optim.AdamW(list(pipeline.parameters()), lr=1e-2)
    weights = all_weights(pipeline)
    seen: list[float] = []
    predictions: list[Tensor] = []
    asked_again: list[Tensor] = []
    held: dict[str, Tensor] = {}
    if evaluates:
        seen.append(pipeline.evaluate(heldout, outputs=lambda logits, microbatch: logits.argmax(-1)))
        predictions, asked_again = pipeline.outputs(), pipeline.outputs()
        held = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
    losses = []
    for step in range(3):
        for part in range(2):
            losses.append(pipeline.step(tokens(8, 12, seed=100 * step + part)))
            if evaluates:
                seen.append(pipeline.evaluate(heldout))
                seen.append(pipeline.evaluate(tokens(16 + part, 9, seed=5), num_microbatches=5))
                seen.append(pipeline.evaluate(tokens(1, 3, seed=6)))
        optimizer.step()
        pipeline.zero_grad()
    after = {name: weight.detach().clone() for name, weight in pipeline.weights().items()}
    pipeline.release()
    objective = next_token_objective()
    (expected,), _ = one_process(reference, weights, [heldout], objective)
    whole = reference.whole()
    with torch.no_grad():
        for name, weight in whole.module.named_parameters():
            weight.copy_(weights[name])
        right = [whole.call(microbatch).argmax(-1) for microbatch in heldout]
    return Evaluated(tuple(losses), after, tuple(seen), expected, predictions, right, asked_again, held)


def narrow_evaluation(mesh: Mesh) -> tuple[float, float, float]:
    """(evaluated, by one process, a step's loss) in bfloat16; the evaluation has twice the training's samples."""
    reference = llama(torch.bfloat16)
    pipeline = pipeline_of(llama(torch.bfloat16), mesh, microbatches=4)
    weights = all_weights(pipeline)
    twice = [tokens(4, 12, seed=index) for index in range(4)]
    evaluated = pipeline.evaluate(twice)
    step = pipeline.step(tokens(8, 12, seed=9))
    pipeline.release()
    (expected,), _ = one_process(reference, weights, [twice], next_token_objective())
    return evaluated, expected, step


def outputs_of_a_step(mesh: Mesh) -> tuple[list[list[float]], list[Tensor]]:
    """(outputs of two rounds under a schedule that begins with its last microbatch, what is there unasked)."""
    plain = get("1f1b").build(mesh.num_ranks, num_microbatches=3)
    orders = tuple(tuple(replace(a, microbatch=2 - a.microbatch) for a in order) for order in plain.orders)
    backwards = Schedule("backwards", plain.placement, 3, orders)
    pipeline = pipeline_of(ones(), mesh, microbatches=3, objective=OUTPUT_SUM, schedule=backwards, accumulation=2)
    batch = {"inputs": torch.arange(1.0, 7.0)[:, None]}
    pipeline.step(batch, outputs=lambda output, microbatch: output[:, 0] + microbatch["inputs"][:, 0])
    kept = [output.tolist() for output in pipeline.outputs()]
    pipeline.step(batch)
    unasked = pipeline.outputs()
    pipeline.release()
    return kept, unasked
