"""What one rank does for `packing.py`: one model, and the steps of one batch grouped in every way, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np
import torch
from docstrings import order_of
from rounds import timed

from fullbore.data.rows import Rows
from fullbore.ir.recipe import Layout
from fullbore.models.layered import Microbatch
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.launch import Worker
from fullbore.session.session import store_of, tensors

__all__ = ["GROUPINGS", "Grouped", "Sizes", "even_rows", "measure_groupings"]

GROUPINGS = ("padded", "packed", "balanced", "even")
"""In order, padded; in order, packed; cost-balanced; and, for comparison, cut into rows of exactly one length."""

_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Sizes:
    """``documents`` a step, in ``microbatches``; a Llama of ``blocks`` and ``width`` over bytes."""

    documents: int
    microbatches: int
    sequence_length: int
    blocks: int
    width: int


@dataclass(frozen=True, slots=True)
class Grouped:
    """The steps of one grouping, one a batch, as rank 0 saw them."""

    grouping: str
    step_ns: list[int] = field(default_factory=list)
    positions: list[list[int]] = field(default_factory=list)
    """Rows times length of each microbatch, what is filled up included; one list a batch."""

    losses: list[float] = field(default_factory=list)


def even_rows(rows: Sequence[Rows]) -> list[Rows]:
    """The same tokens behind each other, cut into as many rows of one length: documents break, nothing is uneven."""
    row, count = _joined(rows), len(rows)
    edges = [index * row.input_ids.shape[1] // count for index in range(count + 1)]
    assert row.position_ids is not None
    return [
        Rows(row.input_ids[:, a:b], row.labels[:, a:b], position_ids=row.position_ids[:, a:b])
        for a, b in pairwise(edges)
    ]


def measure_groupings(worker: Worker, documents: list[bytes], sizes: Sizes, batches: int) -> list[Grouped]:
    from transformers import LlamaConfig

    torch.set_num_threads(1)
    mesh = Mesh(Layout(pipeline=worker.num_ranks), device=CpuDevice(), timeout_s=120.0, store=store_of(worker))
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=sizes.width,
        intermediate_size=8 * sizes.width // 3,
        num_hidden_layers=sizes.blocks,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    pipeline = Pipeline(config, num_microbatches=sizes.microbatches, device=CpuDevice(), mesh=mesh, timeout_s=120.0)
    found = {name: Grouped(name) for name in GROUPINGS}
    for index in range(-1, batches):
        grouped = _grouped(documents, sizes, consumed=(index + 1) * sizes.documents)
        taken: dict[str, list[int]] = {name: [] for name in GROUPINGS}
        losses: dict[str, float] = {}
        for name in Random(index).sample(2 * GROUPINGS, 2 * len(GROUPINGS)):
            losses[name], step_ns = _step(pipeline, [tensors(rows) for rows in grouped[name]], mesh)
            taken[name].append(step_ns)
        for name in GROUPINGS if index >= 0 else ():  # the first batch warms up
            found[name].step_ns.append(min(taken[name]))
            found[name].positions.append([rows.input_ids.size for rows in grouped[name]])
            found[name].losses.append(losses[name])
    _require_same_loss(found)
    mesh.barrier()
    pipeline.close()
    return list(found.values())


def _step(pipeline: Pipeline, batch: Sequence[Microbatch], mesh: Mesh) -> tuple[float, int]:
    pipeline.zero_grad()
    done = timed(lambda: pipeline.step(batch), mesh=mesh)
    assert isinstance(done.result, float)
    return done.result, done.step_ns


def _grouped(documents: list[bytes], sizes: Sizes, *, consumed: int) -> dict[str, Sequence[Rows]]:
    found: dict[str, Sequence[Rows]] = {}
    for name in GROUPINGS[:3]:
        order = order_of(documents, sequence_length=sizes.sequence_length, grouping=name)
        found[name] = order.microbatches(consumed, count=sizes.documents, num_microbatches=sizes.microbatches)
    found["even"] = even_rows(found["packed"])
    return found


def _joined(rows: Sequence[Rows]) -> Rows:
    positions = [row.position_ids for row in rows if row.position_ids is not None]
    return Rows(
        np.concatenate([row.input_ids for row in rows], axis=1),
        np.concatenate([row.labels for row in rows], axis=1),
        position_ids=np.concatenate(positions, axis=1),
    )


def _require_same_loss(found: dict[str, Grouped]) -> None:
    """Grouping is no change of the batch; only cut documents lose something."""
    for name in ("packed", "balanced"):
        for one, other in zip(found[name].losses, found["padded"].losses, strict=True):
            assert abs(one - other) <= _TOLERANCE * abs(other), (name, one, other)
