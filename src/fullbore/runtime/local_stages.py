"""LocalStages: the stages of one rank, built and wrapped, with what a layer number means for them.

Split backwards, compiling, random keys and recomputation wrap a layer's forward, in this order from the inside out,
and are taken off again in the reverse one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from fullbore.errors import ScheduleError
from fullbore.ids import Rank, StageIndex
from fullbore.ir.action import Kind, Message, Payload
from fullbore.ir.schedule import Schedule
from fullbore.models.checkpoints import Watch, require_checkpoints
from fullbore.models.compiled import apply_compile
from fullbore.models.layered import Boundary, BuiltStage, LayeredModel, Microbatch, Objective
from fullbore.models.randomness import RandomKeys, apply_keys
from fullbore.models.recompute import apply_recompute, require_free
from fullbore.models.share import share_weights
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits
from fullbore.runtime.device import Device
from fullbore.runtime.eager import EagerEngine, EvaluationEngine
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.recorder import StepRecorder

__all__ = ["LocalStages", "say_what_stays_whole"]


class LocalStages:
    """Built once; `release` gives the model's modules back as they came."""

    def __init__(
        self,
        model: LayeredModel,
        *,
        schedule: Schedule,
        edges: Sequence[int],
        rank: Rank,
        seed: int,
        device: Device,
        recompute: Sequence[str],
        compile: bool,
        recorder: StepRecorder,
    ) -> None:
        """``edges``: the first layer of every stage of a stream, and the number of layers at the end.

        Raises:
            ModelError: a layer to recompute that cannot be wrapped, or one that another pipeline has wrapped.
            ScheduleError: recomputations in the schedule, and no layer recomputes.
        """
        if schedule.recomputes:
            if not recompute:
                raise ScheduleError(
                    f"schedule {schedule.name!r} has recomputations (R) and no layer recomputes; name layers in "
                    "recompute, or give it without its Rs"
                )
            require_checkpoints()
        self._model = model
        self._schedule = schedule
        self._edges = tuple(edges)
        self._device = device
        self._recorder = recorder
        self._keys = RandomKeys(seed, device=device.torch_device)
        self._undo: list[Callable[[], None]] = []
        self._deferrals: dict[StageIndex, Deferral] = {}
        self._watches: dict[StageIndex, Watch] = {}
        self._whole: Counter[str] = Counter()
        self._wrapped: set[nn.Module] = set()
        self._crossings: dict[tuple[object, ...], tuple[str, ...]] = {}
        here = schedule.placement.stages_of(rank)
        try:
            self._stages = share_weights({stage: self._build(stage, seed, recompute, compile) for stage in here})
        except BaseException:
            self.release()
            raise

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """Under their full names in the whole model."""
        return {name: weight for held in self.weights_of.values() for name, weight in held.items()}

    @property
    def weights_of(self) -> dict[StageIndex, Mapping[str, nn.Parameter]]:
        """The same, of each stage."""
        return {stage: built.weights for stage, built in self._stages.items()}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Under their full names in the whole model."""
        return {name: buffer for stage in self._stages.values() for name, buffer in stage.buffers.items()}

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """In the order of the stages, which is that of the model where there is one stream."""
        return tuple(stage.module for stage in self._stages.values())

    @property
    def whole(self) -> Mapping[str, int]:
        """Classes of modules whose backward the schedule splits and nothing here can, and how many there are."""
        return self._whole

    def training_engines(self, objective: Objective) -> dict[StageIndex, EagerEngine]:
        """One for each stage; ``objective`` is for the last one of each stream."""
        return {
            stage: EagerEngine(
                built.module,
                entrance=None if self._is_first(stage) else partial(self._model.boundary, self._first_layer(stage)),
                exit=None if self._is_last(stage) else partial(self._model.boundary, self._end_layer(stage)),
                objective=objective if self._is_last(stage) else None,
                keys=self._keys,
                deferral=self._deferrals.get(stage),
                split=self._schedule.split_on(stage),
                watch=self._watches[stage],
                ahead=self._schedule.recomputed_on(stage),
            )
            for stage, built in self._stages.items()
        }

    def evaluation_engines(self, objective: Objective) -> dict[StageIndex, EvaluationEngine]:
        """As `training_engines`, over the same modules."""
        return {
            stage: EvaluationEngine(built.module, objective=objective if self._is_last(stage) else None)
            for stage, built in self._stages.items()
        }

    def require_inputs(self, microbatches: Sequence[Microbatch]) -> None:
        """What crosses first, of each microbatch, while nothing is under way. (One stage alone has nobody waiting.)

        Raises:
            ModelError: the first stage cannot read it.
        """
        if len(self._edges) > 2:
            for microbatch in microbatches:
                self._model.boundary(self._edges[1], microbatch)

    def crossings(self, microbatches: Sequence[Microbatch]) -> dict[str, str]:
        """What comes into every stage but the first, in words, by the name of its first layer: of the first microbatch
        of each kind, whatever its sizes, so that a batch of many lengths costs nothing."""
        kinds: dict[tuple[object, ...], Microbatch] = {}
        for microbatch in microbatches:
            kinds.setdefault(tuple((name, t.dim(), t.dtype) for name, t in microbatch.items()), microbatch)
        for kind, microbatch in kinds.items():
            if kind not in self._crossings:
                boundaries = [self._model.boundary(layer, microbatch) for layer in self._edges[1:-1]]
                self._crossings[kind] = tuple(map(_described, boundaries))
        names = [self._model.layer_names[layer] for layer in self._edges[1:-1]]
        found = [self._crossings[kind] for kind in kinds]
        return {name: " or ".join(each) for name, *each in zip(names, *found, strict=True)}

    def boundary_of(self, message: Message, microbatch: Microbatch) -> Boundary:
        """What crosses where a message goes, between any two stages of the pipeline."""
        forward = message.payload is Payload.ACTIVATION
        layer = self._end_layer(message.stage) if forward else self._first_layer(message.stage)
        return self._model.boundary(layer, microbatch)

    def release(self) -> None:
        """Take everything off the modules."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _is_first(self, stage: StageIndex) -> bool:
        return self._schedule.placement.previous_stage(stage) is None

    def _is_last(self, stage: StageIndex) -> bool:
        return self._schedule.placement.next_stage(stage) is None

    def _first_layer(self, stage: StageIndex) -> int:
        return self._edges[self._schedule.placement.place_of(stage)]

    def _end_layer(self, stage: StageIndex) -> int:
        return self._edges[self._schedule.placement.place_of(stage) + 1]

    def _build(self, stage: StageIndex, seed: int, recompute: Sequence[str], compile: bool) -> BuiltStage:
        device = self._device.torch_device
        first, end = self._first_layer(stage), self._end_layer(stage)
        built = self._model.build_stage(first, end, seed=seed, device=device)
        require_free(built.parts, ours=self._wrapped)
        self._wrapped.update(part for parts in built.parts.values() for part in parts)
        if self._schedule.split_on(stage):
            deferral = self._deferrals[stage] = Deferral()
            compiled = tuple(built.layer_modules.values()) if compile else ()
            undo, whole = apply_weight_splits(built.module, deferral, leave=compiled)
            self._undo.append(undo)
            self._whole.update(whole)
        if compile:
            self._undo.append(apply_compile(built.layer_modules, device=device))
        self._undo.append(apply_keys(built.parts, self._keys))
        here = [name for name in recompute if name in built.layers]
        watch = self._watches[stage] = Watch()
        self._undo.append(
            apply_recompute(built, here, around=lambda _: self._recorder.nested(Kind.RECOMPUTE), watch=watch)
        )
        return built


def _described(boundary: Boundary) -> str:
    return " and ".join(
        f"{list(spec.shape)} {spec.dtype} ({'its gradient comes back' if spec.gradient else 'no gradient comes back'})"
        for spec in boundary.tensors
    )


def say_what_stays_whole(schedule: Schedule, whole: Mapping[str, int], *, mesh: Mesh) -> None:
    """Which classes, on any rank, do their full backward at I; said once, by rank 0. All ranks call it."""
    if not any(schedule.split_on(StageIndex(stage)) for stage in range(schedule.num_stages)):
        return
    total: Counter[str] = Counter()
    for one in mesh.gather(dict(whole)):
        total.update(one)
    if total and mesh.rank == 0:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(total.items()))
        warnings.warn(
            f"schedule {schedule.name} splits backwards, but the backward of these modules stays whole, at I: "
            f"{names}; nothing is registered for their forward, or they are compiled, or what they use as a weight is "
            "no parameter of theirs (see fullbore.register_weight_split)",
            stacklevel=3,
        )
