"""Cutting: a copy of a model in which only the modules of one stage are real.

Used alike for a stage that trains, and for the tiny copy whose cuts are compared with the whole before.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.models.hugging_face.flow import Flow, Value
from fullbore.models.hugging_face.pipeline_plan import PipelinePlan
from fullbore.models.hugging_face.stand_ins import Earlier, Later, Passage, Reached, Recorded
from fullbore.models.hugging_face.task import Task
from fullbore.models.layered import Microbatch, Parcel
from fullbore.models.token_chunks import TokenChunks

__all__ = ["Cut", "HuggingFaceStage", "Piece", "Tail", "crossing", "cut_out", "record", "with_tail"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Which modules are this stage's own, and what crosses at its two ends."""

    before: frozenset[str]
    own: frozenset[str]
    """Parts; those that are in neither come after."""

    entrance: tuple[Value, ...]
    exit: tuple[Value, ...]

    @classmethod
    def of_layers(cls, plan: PipelinePlan, flow: Flow, *, first: int, end: int) -> Cut:
        """Layers ``first`` to ``end`` - 1."""
        before, own = (
            frozenset(p for parts in some for p in parts) for some in (plan.parts[:first], plan.parts[first:end])
        )
        return cls.of_parts(plan, flow, before=before, own=own)

    @classmethod
    def of_parts(cls, plan: PipelinePlan, flow: Flow, *, before: frozenset[str], own: frozenset[str]) -> Cut:
        """Any parts that follow each other."""
        until = before | own
        leaving = () if until >= set(plan.called) else flow.crossing(until)
        return cls(before, own, flow.crossing(before) if before else (), leaving)


def crossing(plan: PipelinePlan, flow: Flow, *, layer: int) -> tuple[Value, ...]:
    """What enters layer ``layer``, 1 or more."""
    return Cut.of_layers(plan, flow, first=layer, end=layer + 1).entrance


@dataclass(frozen=True, slots=True)
class Piece:
    """A copy of a model in which only some parts are real."""

    model: Any
    cut: Cut
    passage: Passage

    def run(self, carried: Parcel, inputs: Mapping[str, Any]) -> Parcel | Any:
        """The model's forward: what crosses at the exit, or the model's own output where there is none."""
        assert len(carried) == len(self.cut.entrance), "a stage takes what the one before it gave"
        given = dict(zip(self.cut.entrance, carried, strict=True))
        self.passage.begin(given, device=inputs["input_ids"].device)
        try:
            output = self.model(**inputs)
        except Reached:
            return self.passage.leave(self.cut.exit)
        self.passage.leave(())
        assert not self.cut.exit, "the forward ended before it reached the next stage"
        return output


class HuggingFaceStage(nn.Module):
    """The whole model's forward over a copy in which the modules of other stages are stood in for."""

    def __init__(self, piece: Piece, *, task: Task, tail: Tail | None = None, chunk: int | None = None) -> None:
        """``tail``: on a last stage that gives `TokenChunks`; then ``piece`` ends in front of the projection."""
        super().__init__()
        self.model = piece.model
        self.tail = tail
        self._piece = piece
        self._task = task
        self._chunk = chunk

    def forward(self, carried: Parcel | None, microbatch: Microbatch) -> Any:
        """A `Parcel` of what crosses to the next stage; from the last one, what the task gives."""
        found = self._piece.run(carried or (), self._task.inputs(self.model, microbatch))
        if self.tail is not None:
            assert self._chunk is not None
            return TokenChunks(found[0], self.tail, self._chunk)
        return found if self._piece.cut.exit else self._task.result(self.model, found)


class Tail(nn.Module):
    """The projection and what the model's forward does after it."""

    def __init__(self, piece: Piece, *, task: Task) -> None:
        super().__init__()
        self.model = piece.model
        self._piece = piece
        self._task = task

    def forward(self, hidden: Tensor) -> Tensor:
        """`[tokens, width]` -> `[tokens, vocabulary]`. Each token is a sample of length 1: no mask joins two."""
        nothing = torch.zeros((len(hidden), 1), dtype=torch.long, device=hidden.device)
        inputs = dict.fromkeys(self._task.tokens, nothing)
        output = self._piece.run((hidden.unsqueeze(1),), {**inputs, "use_cache": False})
        return self._task.result(self.model, output).squeeze(1)


def cut_out(
    model: Any, cut: Cut, *, plan: PipelinePlan, flow: Flow, memo: dict[int, object], blank: float = 0.0
) -> Piece:
    """A copy of ``model`` with stand-ins for the parts that are not the cut's own.

    ``memo``: for `copy.deepcopy`: what is not to be copied.
    """
    passage = Passage(blank=blank)
    hidden_size = int(model.config.get_text_config().hidden_size)
    for name in plan.called:
        module = model.get_submodule(name)
        if name in cut.before:
            memo[id(module)] = Earlier(module, part=name, flow=flow, passage=passage, hidden_size=hidden_size)
        elif name not in cut.own:
            memo[id(module)] = Later(module)
    for name in plan.idle_parts:
        module = model.get_submodule(name)
        memo[id(module)] = Later(module)
    return Piece(copy.deepcopy(model, memo), cut, passage)


def record(piece: Piece, *, flow: Flow) -> None:
    """Put `Recorded` around the modules of a cut copy whose values leave it. Last of all: names change by this."""
    for part in sorted({value.part for value in piece.cut.exit} & piece.cut.own):
        frame, _, name = part.rpartition(".")
        inner = piece.model.get_submodule(part)
        recorded = Recorded(inner, part=part, flow=flow, passage=piece.passage)
        setattr(piece.model.get_submodule(frame), name, recorded)


def with_tail(piece: Piece, original: Any, *, plan: PipelinePlan, flow: Flow, task: Task) -> tuple[Piece, Tail]:
    """A last stage in two: up to the projection, and from there on for tokens one by one.

    Args:
        piece: the last stage; changed in place.
        original: what it was cut out of.
    """
    projection = piece.model.get_submodule(plan.projection)
    before = frozenset(plan.called) - {plan.projection}
    memo: dict[int, object] = {id(original.get_submodule(plan.projection)): projection}
    for name in plan.shared_parts:
        memo[id(original.get_submodule(name))] = piece.model.get_submodule(name)
    for name in plan.frames:
        theirs, own = original.get_submodule(name)._buffers, piece.model.get_submodule(name)._buffers
        memo |= {id(buffer): own[key] for key, buffer in theirs.items() if buffer is not None}
    cut = Cut.of_parts(plan, flow, before=before, own=frozenset([plan.projection]))
    tail = cut_out(original, cut, plan=plan, flow=flow, memo=memo)
    frame, _, name = plan.projection.rpartition(".")
    setattr(piece.model.get_submodule(frame), name, Later(projection))
    ending = Cut(piece.cut.before, piece.cut.own - {plan.projection}, piece.cut.entrance, cut.entrance)
    return Piece(piece.model, ending, piece.passage), Tail(tail, task=task)
