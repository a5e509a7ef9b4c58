"""A model cut into stages that run one after the other in this process, each with its real engine.

Everything but the transport is real: leaves are cut off at each boundary, gradients come back through it. All
microbatches go forward first, then all backward, so several are alive at once. Split backwards owe their weight
gradients until two more microbatches have come by.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from fullbore.ids import MicrobatchIndex
from fullbore.models.auxiliary import num_samples
from fullbore.models.checkpoints import Watch
from fullbore.models.compiled import apply_compile
from fullbore.models.layered import BuiltStage, LayeredModel, Microbatch, Objective, Parcel
from fullbore.models.randomness import RandomKeys, apply_keys
from fullbore.models.recompute import apply_recompute
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits
from fullbore.runtime.eager import EagerEngine, EvaluationEngine
from fullbore.runtime.gradients import GradientStore

CPU = torch.device("cpu")

SQUARED_ERROR = Objective(
    loss_sum=lambda output, batch: ((output - batch["targets"]) ** 2).sum(),
    count=lambda batch: batch["targets"].numel(),
)


class Staged:
    """``cuts``: ``[0, 3, 6]`` is two stages of three layers. ``ahead``: what recomputes does so before any gradient of
    its microbatch is there. ``again`` counts the second forwards of layers: those in an R, those in a backward."""

    def __init__(
        self,
        model: LayeredModel,
        cuts: Sequence[int],
        *,
        objective: Objective = SQUARED_ERROR,
        seed: int = 0,
        recompute: Sequence[str] = (),
        compiled: bool = False,
        split: bool = False,
        ahead: bool = False,
        scaled: bool = False,
    ) -> None:
        self.objective = objective
        self.split = split
        self.ahead = ahead
        self.again: Counter[str] = Counter()
        self._doing = "backward"
        self.whole: list[dict[str, int]] = []
        self.peak_held_bytes = [0] * (len(cuts) - 1)
        self.stages: list[BuiltStage] = []
        self.engines: list[EagerEngine] = []
        self.undo: list[Callable[[], None]] = []
        keys = RandomKeys(seed, device=CPU)
        for first, end in itertools.pairwise(cuts):
            stage = model.build_stage(first, end, seed=seed, device=CPU)
            deferral = Deferral() if split else None
            if deferral is not None:
                leave = tuple(stage.layer_modules.values()) if compiled else ()
                undo, whole = apply_weight_splits(stage.module, deferral, leave=leave)
                self.undo.append(undo)
                self.whole.append(dict(whole))
            if compiled:
                self.undo.append(apply_compile(stage.layer_modules, device=CPU))
            self.undo.append(apply_keys(stage.parts, keys))
            here = [name for name in recompute if name in stage.layers]
            watch = Watch()
            self.undo.append(apply_recompute(stage, here, around=self._again, watch=watch))
            self.stages.append(stage)
            self.engines.append(
                EagerEngine(
                    stage.module,
                    entrance=partial(model.boundary, first) if first else None,
                    exit=partial(model.boundary, end) if end < cuts[-1] else None,
                    objective=None if end < cuts[-1] else objective,
                    keys=keys,
                    deferral=deferral,
                    watch=watch,
                    ahead=range(100) if ahead else (),
                )
            )
        self.weights = {name: weight for stage in self.stages for name, weight in stage.weights.items()}
        self.store = GradientStore(self.weights, scaled=scaled)

    @property
    def buffers(self) -> dict[str, Tensor]:
        return {name: buffer for stage in self.stages for name, buffer in stage.buffers.items()}

    def step(self, rounds: Sequence[Sequence[Microbatch]], *, step: int = 1, loss_scale: float = 1.0) -> float:
        """The loss over all microbatches of all rounds; gradients add up in `store`."""
        every = [microbatch for one in rounds for microbatch in one]
        count = sum(self.objective.count(microbatch) for microbatch in every)
        rows = sum(num_samples(microbatch) for microbatch in every)
        self.store.loss_scale = loss_scale
        for engine in self.engines:
            engine.begin(count, num_samples=rows, step=step, loss_scale=loss_scale)
        done = 0
        for one in rounds:
            for engine in self.engines:
                engine.first_microbatch = done
            for index, microbatch in enumerate(one):
                parcel: Parcel | None = None
                for engine in self.engines:
                    parcel = engine.forward(MicrobatchIndex(index), microbatch, parcel)
            for index in range(len(one) + 2):
                if index < len(one) and self.ahead:
                    self._doing = "R"
                    for engine in self.engines:
                        engine.recompute(MicrobatchIndex(index))
                    self._doing = "backward"
                if index < len(one):
                    self._backward(MicrobatchIndex(index))
                if self.split and index >= 2:
                    for engine in reversed(self.engines):
                        engine.backward_weight(MicrobatchIndex(index - 2))
            done += len(one)
        loss = float(self.engines[-1].loss_sum or 0.0) / count
        return loss + sum(float(engine.auxiliary_loss or 0.0) for engine in self.engines)

    def _again(self, layer: str) -> AbstractContextManager[None]:
        del layer
        self.again[self._doing] += 1
        return nullcontext()

    def _backward(self, index: MicrobatchIndex) -> None:
        gradients: Parcel | None = None
        for number, engine in reversed(list(enumerate(self.engines))):
            if self.split:
                gradients = engine.backward_input(index, gradients)
                self.peak_held_bytes[number] = max(self.peak_held_bytes[number], engine.held_bytes)
            else:
                gradients = engine.backward(index, gradients)

    def evaluate(self, microbatches: Sequence[Microbatch]) -> float:
        """The loss in evaluation mode."""
        engines = [EvaluationEngine(stage.module, objective=None) for stage in self.stages[:-1]]
        engines.append(EvaluationEngine(self.stages[-1].module, objective=self.objective))
        for engine in engines:
            engine.begin()
        for index, microbatch in enumerate(microbatches):
            parcel: Parcel | None = None
            for engine in engines:
                parcel = engine.forward(MicrobatchIndex(index), microbatch, parcel)
        for engine in engines:
            engine.end()
        assert engines[-1].loss_sum is not None
        return float(engines[-1].loss_sum) / sum(self.objective.count(microbatch) for microbatch in microbatches)


def sliced(batch: Microbatch, number: int) -> list[Microbatch]:
    """Equal slices along the samples."""
    parts = {name: tensor.chunk(number) for name, tensor in batch.items()}
    return [{name: part[index] for name, part in parts.items()} for index in range(number)]
