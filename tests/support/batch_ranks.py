"""What ranks do with batches of every form. All scenarios of one number of ranks run in one group of processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.errors import FullboreError, ModelError
from fullbore.ir.schedule import Schedule
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.models.next_token import next_token_objective
from fullbore.models.sequential import sequential_model
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.schedules.registry import get
from tests.support.ranks import SQUARED_ERROR
from tests.support.scenarios import run_scenarios

VOCABULARY = 97
IGNORED = -100


@dataclass(frozen=True)
class Trained:
    """What steps of one pipeline came to on one rank, and on one process that ran the same microbatches."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]
    """Added up over the steps; this rank's."""

    expected_losses: tuple[float, ...]
    expected: dict[str, Tensor]
    """The whole model's."""


def scenarios(*names: str, num_ranks: int) -> dict[str, list[Any]]:
    """Results by rank of functions of this module, by name."""
    return run_scenarios(__name__, *names, num_ranks=num_ranks)


def tiny_llama(**more: Any) -> Any:
    """On the meta device: every rank and the reference draw the same values from the seed."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaConfig(**{"vocab_size": VOCABULARY, "tie_word_embeddings": False, **sizes, **heads, **more})


def llama(dtype: torch.dtype = torch.float64, **more: Any) -> HuggingFaceModel:
    return HuggingFaceModel.from_config(tiny_llama(**more), dtype=dtype)


def tokens(*shape: int, seed: int, ignored: Callable[[Tensor], Tensor] | None = None) -> Microbatch:
    """Drawn input and labels; ``ignored`` says which labels do not count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, shape, generator=generator)
    labels = torch.randint(0, VOCABULARY, shape, generator=generator)
    if ignored is not None:
        labels = torch.where(ignored(labels), IGNORED, labels)
    return {"input_ids": ids, "labels": labels}


def pipeline_of(model: Any, mesh: Mesh, num_microbatches: int, **more: Any) -> Pipeline:
    return Pipeline(model, num_microbatches=num_microbatches, device=CpuDevice(), mesh=mesh, **more)


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


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except FullboreError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# ----------------------------------------------------------------------------------------------- slices of one mapping

OUTPUT_SUM = Objective(loss_sum=lambda output, batch: output.sum(), count=lambda batch: len(batch["inputs"]))


def ones(*, layers: int = 2) -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(layers)))
    for layer in model:
        nn.init.ones_(layer.weight)
    return model


def eight_samples_in_three(mesh: Mesh) -> tuple[float, list[list[int]], float]:
    """(loss, shapes of the microbatches' outputs, this rank's gradient); sample i has loss i."""
    pipeline = pipeline_of(ones(), mesh, 3, objective=OUTPUT_SUM)
    loss = pipeline.step({"inputs": torch.arange(1.0, 9.0)[:, None]}, outputs=lambda output, batch: output)
    shapes = [list(output.shape) for output in pipeline.outputs()]
    (gradient,) = pipeline.gradients().values()
    seen = (loss, shapes, float(gradient))
    pipeline.release()
    return seen


def two_samples_for_four(mesh: Mesh) -> tuple[str, float]:
    """Refused, and the pipeline goes on."""
    pipeline = pipeline_of(ones(), mesh, 4, objective=OUTPUT_SUM)
    said = refused(lambda: pipeline.step({"inputs": torch.ones(2, 1)}))
    seen = (said, pipeline.step({"inputs": torch.ones(4, 1)}))
    pipeline.release()
    return seen


# ----------------------------------------------------------------------------- token-exact loss and shapes that differ


MASKED = Objective(
    loss_sum=lambda output, batch: (output * batch["counts"]).sum(), count=lambda batch: int(batch["counts"].sum())
)


def ten_one_and_none(mesh: Mesh) -> tuple[float, float]:
    """(loss, this rank's gradient) of microbatches with 10, 1 and 0 counted tokens, of losses 1 and 5."""
    microbatches = [
        {"inputs": torch.ones(1, 10, 1), "counts": torch.ones(1, 10, 1)},
        {"inputs": torch.full((1, 4, 1), 5.0), "counts": torch.tensor([0.0, 1.0, 0.0, 0.0])[None, :, None]},
        {"inputs": torch.full((1, 3, 1), 7.0), "counts": torch.zeros(1, 3, 1)},
    ]
    pipeline = pipeline_of(ones(), mesh, 3, objective=MASKED)
    loss = pipeline.step(microbatches)
    (gradient,) = pipeline.gradients().values()
    pipeline.release()
    return loss, float(gradient)


def labels_10_1_0(mesh: Mesh) -> Trained:
    counted = [
        lambda labels: torch.arange(12)[None] >= 10,
        lambda labels: torch.arange(12)[None] != 5,
        lambda labels: torch.ones(1, 12, dtype=torch.bool),
    ]
    batch = [tokens(1, 12, seed=index, ignored=ignored) for index, ignored in enumerate(counted)]
    return train(llama(), mesh, [batch], objective=next_token_objective(), num_microbatches=3)


def nothing_counts(mesh: Mesh) -> tuple[float, dict[str, Tensor]]:
    """A whole batch without a counted token."""
    pipeline = pipeline_of(llama(), mesh, 2)
    loss = pipeline.step([tokens(1, 5, seed=index, ignored=lambda labels: labels >= 0) for index in range(2)])
    seen = (loss, {name: gradient.clone() for name, gradient in pipeline.gradients().items()})
    pipeline.release()
    return seen


def nine_then_five(mesh: Mesh) -> Trained:
    """Unpadded lengths 9 and 5, then 5 and 9, gradients added up."""
    steps = [[9, 5], [5, 9]]
    batches = [[tokens(2, length, seed=10 * s + length) for length in lengths] for s, lengths in enumerate(steps)]
    return train(llama(), mesh, batches, objective=next_token_objective(), num_microbatches=2)


def shapes_of_rounds(mesh: Mesh) -> Trained:
    """Samples and lengths differ between microbatches, accumulation rounds and steps."""
    steps = [[(1, 9), (3, 4), (2, 6), (1, 1)], [(2, 3), (2, 3), (1, 12), (4, 2)]]
    batches = [[tokens(*shape, seed=100 * s + sum(shape)) for shape in shapes] for s, shapes in enumerate(steps)]
    return train(llama(), mesh, batches, objective=next_token_objective(), num_microbatches=2, accumulation=2)


def chain_of_tokens() -> LayeredModel:
    torch.manual_seed(11)
    layers = (nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, VOCABULARY))
    return sequential_model(nn.Sequential(*layers).double())


def a_chain_of_uneven_lengths(mesh: Mesh) -> Trained:
    def named(batch: Microbatch) -> Microbatch:
        return {"inputs": batch["input_ids"], "labels": batch["labels"]}

    batches = [[named(tokens(2, length, seed=length)) for length in lengths] for lengths in ([9, 5, 7], [5, 9, 1])]
    return train(chain_of_tokens(), mesh, batches, objective=next_token_objective(), num_microbatches=3)


class _Unembedding(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, value: Tensor) -> Tensor:
        return value @ self.weight.T


def a_tied_sparse_embedding(mesh: Mesh) -> Trained:
    """Whose gradient is sparse on one rank, and dense on the other."""
    torch.manual_seed(11)
    embedding = nn.Embedding(VOCABULARY, 8, sparse=True)
    layers = (embedding, nn.Linear(8, 8), nn.Tanh(), _Unembedding(embedding.weight))
    model = sequential_model(nn.Sequential(*layers).double())
    drawn = [tokens(2, 5, seed=seed) for seed in range(4)]
    named = [{"inputs": one["input_ids"], "labels": one["labels"]} for one in drawn]
    return train(model, mesh, [named[:2], named[2:]], objective=next_token_objective(), num_microbatches=2)


def packed_documents(mesh: Mesh) -> Trained:
    """Two rows of documents behind each other, against each document alone."""
    documents = [tokens(1, length, seed=length) for length in (7, 1, 12, 4, 9, 2)]
    rows = [packed(documents[:3]), packed(documents[3:])]
    objective = next_token_objective()
    model = llama()
    reference = copy.deepcopy(model)
    pipeline = pipeline_of(model, mesh, 2)
    weights = all_weights(pipeline)
    loss = pipeline.step(rows)
    gradients = {name: gradient.clone() for name, gradient in pipeline.gradients().items()}
    pipeline.release()
    losses, expected = one_process(reference, weights, [documents], objective)
    return Trained((loss,), gradients, losses, expected)


def packed(documents: Sequence[Microbatch]) -> Microbatch:
    positions = torch.cat([torch.arange(document["input_ids"].shape[1]) for document in documents])
    rows = {key: torch.cat([document[key] for document in documents], dim=1) for key in ("input_ids", "labels")}
    return {**rows, "position_ids": positions[None]}


# ------------------------------------------------------------------------------------------------------------ one draw


def each_rank_draws(mesh: Mesh) -> list[str]:
    """What is said to ranks that do not hold the same batch."""
    unseeded = torch.Generator()
    unseeded.seed()
    ids = torch.randint(0, VOCABULARY, (4, 12), generator=unseeded)
    own_numbers = {"input_ids": ids, "labels": ids}
    own_lengths = [tokens(1, 5 + mesh.rank + index, seed=index) for index in range(4)]
    own_count = [tokens(1, 5, seed=index) for index in range(4 + mesh.rank)]
    short_here = {key: tensor[: 4 - 2 * mesh.rank] for key, tensor in tokens(4, 5, seed=1).items()}
    pipeline = pipeline_of(llama(), mesh, 4)
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


def views_of_other_numbers(mesh: Mesh) -> list[float]:
    """Losses of batches whose numbers are conjugated or negated where they are read, and of the same in memory."""
    drawn = torch.complex(torch.arange(1.0, 5.0), torch.arange(2.0, 6.0))[:, None]
    pipeline = pipeline_of(ones(), mesh, 2, objective=OUTPUT_SUM)
    losses = []
    for values, beside in ((drawn.conj().imag, drawn.conj()), (-drawn.imag, drawn.conj().resolve_conj())):
        losses.append(pipeline.step({"inputs": values, "beside": beside}))
    pipeline.release()
    return losses


def frozen_on_one_rank(mesh: Mesh) -> list[str]:
    """What is said, in two steps of different sizes, where rank 1 freezes what only rank 0 holds: before the pipeline
    is built, and between the steps."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    said = []
    for freezes_later in (False, True):
        model[0].requires_grad_(mesh.rank == 0 or freezes_later)
        pipeline = pipeline_of(model, mesh, 2, objective=SQUARED_ERROR)
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

    def said(call: Callable[[], object]) -> str:
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    with torch.device("meta"):
        layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    if mesh.rank == 1:
        layers[1].__class__ = _Drawn
    cut: Any = [2, 1] if mesh.rank == 1 else "equal"
    found = [said(lambda: pipeline_of(ones(), mesh, 2, objective=OUTPUT_SUM, layers_per_stage=cut))]
    found.append(said(lambda: pipeline_of(nn.Sequential(*layers), mesh, 2, objective=SQUARED_ERROR)))
    pipeline = pipeline_of(llama(), mesh, 2)
    whole = [tokens(1, 5, seed=index) for index in range(2)]
    found.append(said(lambda: pipeline.step(_Unreadable(whole) if mesh.rank == 1 else whole)))
    found.append(f"{pipeline.step(whole):.3f}")
    pipeline.release()
    return found


# ---------------------------------------------------------------------------------------------------------- evaluation


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
    pipeline = pipeline_of(llama(attention_dropout=0.1), mesh, 4)
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
    pipeline = pipeline_of(llama(torch.bfloat16), mesh, 4)
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
    pipeline = pipeline_of(ones(), mesh, 3, objective=OUTPUT_SUM, schedule=backwards, accumulation=2)
    batch = {"inputs": torch.arange(1.0, 7.0)[:, None]}
    pipeline.step(batch, outputs=lambda output, microbatch: output[:, 0] + microbatch["inputs"][:, 0])
    kept = [output.tolist() for output in pipeline.outputs()]
    pipeline.step(batch)
    unasked = pipeline.outputs()
    pipeline.release()
    return kept, unasked
