"""Session: from a run configuration to a pipeline that can step, on one rank.

    device, process group   ->  text  ->  model (on meta)  ->  measured layer costs, where something needs them
    ->  recipe (partition, schedule, prediction)  ->  this rank's stages, materialised

Every rank measures at the same time, as they will later compute at the same time, and all take the same median:
so every rank resolves the same recipe without one telling the others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import torch
import torch.distributed as dist

from fullbore.config.run import RunConfig, batch_sizes
from fullbore.costs.layer import LayerCost
from fullbore.data.batches import Samples
from fullbore.data.corpus import Corpus, open_corpus
from fullbore.data.rows import Rows
from fullbore.errors import ModelError
from fullbore.ir.recipe import Layout
from fullbore.models.layered import LayeredModel, Microbatch
from fullbore.models.load import load_model
from fullbore.models.profile import profile
from fullbore.plan.cost_uses import CostUse, cost_uses, describe_uses
from fullbore.plan.resolve import ResolvedRecipe, resolve
from fullbore.plan.schedule import asked_schedule
from fullbore.runtime.device import Device, open_device
from fullbore.runtime.environment import local_rank, local_world_size
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.runtime.processes.launch import Worker
from fullbore.session.notice import notice
from fullbore.timeline.instrument import Instrument

__all__ = [
    "Place",
    "Session",
    "build_pipeline",
    "join",
    "measure",
    "microbatches",
    "open_session",
    "require_training",
    "share_cores",
    "store_of",
    "tensors",
    "typical_microbatch",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is: its device, its group, and its slot on the board if a parent watches."""

    device: Device
    mesh: Mesh
    board: ProgressBoard | None

    def tell(self, doing: str, *, period: str = "") -> None:
        """Say on the board what this rank does outside actions; without a ``period`` of the run, in its start-up."""
        if self.board is None:
            return
        if period:
            self.board.write(self.mesh.rank, period=period, doing=doing, waiting=False)
        else:
            self.board.start_up(self.mesh.rank, doing)

    def say(self, text: str) -> None:
        """Tell a person, once for all ranks."""
        if self.mesh.rank == 0:
            notice(text)


@dataclass(frozen=True, slots=True)
class Session:
    """Everything a training or verifying loop works with."""

    place: Place
    corpus: Corpus
    order: Samples
    """Of the training tokens."""

    model: LayeredModel
    costs: tuple[LayerCost, ...]
    """As measured; none where nothing needs them."""

    resolved: ResolvedRecipe


def join(worker: Worker | None, config: RunConfig, *, layout: Layout, device: Device | None = None) -> Place:
    """Take this rank's place in the group. The cores of a machine are shared out among its ranks.

    ``device``: instead of the configured one.
    """
    ours = worker is not None and worker.pipe is not None
    ranks_here = worker.num_ranks if worker is not None and ours else local_world_size()
    share_cores(ranks_here)
    if device is None:
        device = open_device(config.train.device, local_rank=local_rank())
    timeout_s = config.train.timeout_s
    board, store = None, None
    if worker is not None:
        board = ProgressBoard(worker.board, num_ranks=worker.num_ranks, timeout_s=timeout_s)
        board.start_up(worker.rank, "joining the group", waiting=True)
        store = store_of(worker) if ours and worker.num_ranks > 1 else None
    mesh = Mesh(layout, device=device, timeout_s=timeout_s, store=store, board=board)
    place = Place(device, mesh, board)
    place.tell("starting")
    return place


def share_cores(num_ranks: int) -> None:
    """Give this process its share of the cores it may use, unless OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // num_ranks))


def open_session(worker: Worker | None, config: RunConfig, *, costs_for: Collection[CostUse] = ()) -> Session:
    """Join the group, open text and model, measure, decide. Builds no stage yet.

    ``costs_for``: what the caller wants the layers measured for, besides their cut and their order. With nothing
    wanted, and a given cut, nothing is measured.

    Raises:
        InputError: anything the configuration asks for that cannot be had, the same on every rank.
    """
    asked = asked_schedule(config)
    place = join(worker, config, layout=asked.layout(config.mesh))
    place.tell("reading the data")
    corpus = open_corpus(config.data)
    order = corpus.training_order(config.data)
    place.tell("building the model")
    model = load_model(config.model, vocab_size=corpus.vocab_size, seed=config.train.seed)
    if config.data.documents in ("packed", "balanced"):
        from fullbore.models.hugging_face.packed import require_packable  # transformers takes seconds to import

        require_packable(model)
    place.say(f"model  {model.description}")
    place.say(f"data   {corpus.description}")
    place.say(f"       fingerprint {corpus.fingerprint[:16]}")
    costs: tuple[LayerCost, ...] = ()
    uses = cost_uses(config, asked=asked, besides=costs_for)
    if uses:
        place.tell("measuring the layers")
        place.say(f"measuring {len(model.layer_names)} layers: {describe_uses(uses, config=config)}")
        sample = typical_microbatch(order, config)
        costs = measure(model, sample, place=place, seed=config.train.seed, compile=config.model.compile)
    resolved = resolve(config, costs=costs or None, layer_names=model.layer_names, asked=asked)
    return Session(place, corpus, order, model, costs, resolved)


def measure(
    model: LayeredModel, microbatch: Microbatch, *, place: Place, seed: int, compile: bool = False
) -> tuple[LayerCost, ...]:
    """Every rank profiles every layer at once; each time is the lower median over ranks. Rank 0 says where its own
    rounds were disturbed."""
    mine = profile(model, microbatch, device=place.device.torch_device, seed=seed, compile=compile, tell=place.say)
    return _medians(place.mesh.gather(mine))


def require_training(session: Session) -> None:
    """Raises ModelError, on every rank, where no weight trains. (`Pipeline` can evaluate such a model.)"""
    if not _trains(session):
        raise ModelError(
            "nothing in this model trains: none of its weights has requires_grad, so there is no gradient to train "
            "with or to compare; set requires_grad on what should train, or evaluate the model in Python with "
            "Pipeline.evaluate"
        )


def _trains(session: Session) -> bool:
    """As measured. Else layers are built, on the CPU, until one has a weight that trains: the first, as a rule."""
    if session.costs:
        return any(layer.optimizer_bytes for layer in session.costs)
    model, device = session.model, torch.device("cpu")
    return any(
        weight.requires_grad
        for layer in range(len(model.layer_names))
        for weight in model.build_stage(layer, layer + 1, seed=0, device=device).weights.values()
    )


def build_pipeline(session: Session, config: RunConfig, *, instrument: Instrument | None = None) -> Pipeline:
    """Materialise this rank's stages and connect them."""
    recipe = session.resolved.recipe
    session.place.tell("building its stage")
    return Pipeline(
        session.model,
        num_microbatches=recipe.microbatches,
        schedule=session.resolved.schedule,
        layers_per_stage=recipe.layers_per_stage,
        recompute=recipe.recompute,
        compile=config.model.compile,
        accumulation=recipe.accumulation,
        seed=config.train.seed,
        device=session.place.device,
        timeout_s=config.train.timeout_s,
        instrument=instrument,
        board=session.place.board,
        mesh=session.place.mesh,
    )


def microbatches(order: Samples, consumed: int, *, count: int, num_microbatches: int) -> list[dict[str, torch.Tensor]]:
    """The ``count`` samples after the first ``consumed``, as a pipeline takes them."""
    return [tensors(rows) for rows in order.microbatches(consumed, count=count, num_microbatches=num_microbatches)]


def typical_microbatch(order: Samples, config: RunConfig) -> dict[str, torch.Tensor]:
    """The one of middle size of the first step: what layers are measured on."""
    sizes = batch_sizes(config)
    pieces = sizes.microbatches * sizes.accumulation
    rows = order.microbatches(0, count=pieces * sizes.microbatch_size, num_microbatches=pieces)
    return tensors(sorted(rows, key=lambda one: one.input_ids.size)[len(rows) // 2])


def tensors(rows: Rows) -> dict[str, torch.Tensor]:
    """A microbatch: ``input_ids`` for a Hugging Face model, the same as ``inputs`` for a chain of modules."""
    tokens = torch.from_numpy(rows.input_ids)
    batch = {"input_ids": tokens, "inputs": tokens, "labels": torch.from_numpy(rows.labels)}
    for name, values in (("position_ids", rows.position_ids), ("attention_mask", rows.attention_mask)):
        if values is not None:
            batch[name] = torch.from_numpy(values)
    return batch


def _medians(by_rank: Sequence[tuple[LayerCost, ...]]) -> tuple[LayerCost, ...]:
    return tuple(
        replace(
            same[0],
            forward_ns=median_low(layer.forward_ns for layer in same),
            backward_input_ns=median_low(layer.backward_input_ns for layer in same),
            backward_weight_ns=median_low(layer.backward_weight_ns for layer in same),
        )
        for same in zip(*by_rank, strict=True)
    )


def store_of(worker: Worker) -> dist.TCPStore:  # type: ignore[name-defined]
    """Rank 0 opens a store on a free port and the parent passes the port on: no port is ever guessed."""
    first = worker.rank == 0
    port = 0 if first else worker.exchange_port(None)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, worker.num_ranks, is_master=first, wait_for_workers=False
    )
    if first:
        worker.exchange_port(store.port)
    return store
