"""What ranks make of batches of every form: other sizes, shapes, lengths and counts in every microbatch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fullbore.models.layered import LayeredModel, Microbatch, Objective
from fullbore.models.next_token import next_token_objective
from fullbore.models.sequential import sequential_model
from fullbore.runtime.mesh import Mesh
from tests.support.batch_models import OUTPUT_SUM, VOCABULARY, llama, ones, tokens
from tests.support.one_process import Trained, all_weights, one_process, train
from tests.support.pipelines import pipeline_of


def eight_samples_in_three(mesh: Mesh) -> tuple[float, list[list[int]], float]:
    """(loss, shapes of the microbatches' outputs, this rank's gradient); sample i has loss i."""
    pipeline = pipeline_of(ones(), mesh, microbatches=3, objective=OUTPUT_SUM)
    loss = pipeline.step({"inputs": torch.arange(1.0, 9.0)[:, None]}, outputs=lambda output, batch: output)
    shapes = [list(output.shape) for output in pipeline.outputs()]
    (gradient,) = pipeline.gradients().values()
    seen = (loss, shapes, float(gradient))
    pipeline.release()
    return seen


def views_of_other_numbers(mesh: Mesh) -> list[float]:
    """Losses of batches whose numbers are conjugated or negated where they are read, and of the same in memory."""
    drawn = torch.complex(torch.arange(1.0, 5.0), torch.arange(2.0, 6.0))[:, None]
    pipeline = pipeline_of(ones(), mesh, microbatches=2, objective=OUTPUT_SUM)
    losses = []
    for values, beside in ((drawn.conj().imag, drawn.conj()), (-drawn.imag, drawn.conj().resolve_conj())):
        losses.append(pipeline.step({"inputs": values, "beside": beside}))
    pipeline.release()
    return losses


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
    pipeline = pipeline_of(ones(), mesh, microbatches=3, objective=MASKED)
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
    return train(llama(), mesh, [batch], objective=next_token_objective(), microbatches=3)


def nothing_counts(mesh: Mesh) -> tuple[float, dict[str, Tensor]]:
    """A whole batch without a counted token."""
    pipeline = pipeline_of(llama(), mesh, microbatches=2)
    loss = pipeline.step([tokens(1, 5, seed=index, ignored=lambda labels: labels >= 0) for index in range(2)])
    seen = (loss, {name: gradient.clone() for name, gradient in pipeline.gradients().items()})
    pipeline.release()
    return seen


def nine_then_five(mesh: Mesh) -> Trained:
    """Unpadded lengths 9 and 5, then 5 and 9, gradients added up."""
    steps = [[9, 5], [5, 9]]
    batches = [[tokens(2, length, seed=10 * s + length) for length in lengths] for s, lengths in enumerate(steps)]
    return train(llama(), mesh, batches, objective=next_token_objective(), microbatches=2)


def shapes_of_rounds(mesh: Mesh) -> Trained:
    """Samples and lengths differ between microbatches, accumulation rounds and steps."""
    steps = [[(1, 9), (3, 4), (2, 6), (1, 1)], [(2, 3), (2, 3), (1, 12), (4, 2)]]
    batches = [[tokens(*shape, seed=100 * s + sum(shape)) for shape in shapes] for s, shapes in enumerate(steps)]
    return train(llama(), mesh, batches, objective=next_token_objective(), microbatches=2, accumulation=2)


def chain_of_tokens() -> LayeredModel:
    torch.manual_seed(11)
    layers = (nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, VOCABULARY))
    return sequential_model(nn.Sequential(*layers).double())


def a_chain_of_uneven_lengths(mesh: Mesh) -> Trained:
    def named(batch: Microbatch) -> Microbatch:
        return {"inputs": batch["input_ids"], "labels": batch["labels"]}

    batches = [[named(tokens(2, length, seed=length)) for length in lengths] for lengths in ([9, 5, 7], [5, 9, 1])]
    return train(chain_of_tokens(), mesh, batches, objective=next_token_objective(), microbatches=3)


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
    return train(model, mesh, [named[:2], named[2:]], objective=next_token_objective(), microbatches=2)


def packed_documents(mesh: Mesh) -> Trained:
    """Two rows of documents behind each other, against each document alone."""
    documents = [tokens(1, length, seed=length) for length in (7, 1, 12, 4, 9, 2)]
    rows = [packed(documents[:3]), packed(documents[3:])]
    objective = next_token_objective()
    model = llama()
    reference = copy.deepcopy(model)
    pipeline = pipeline_of(model, mesh, microbatches=2)
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
