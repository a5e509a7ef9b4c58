"""Which modules of a Hugging Face model are which layer: from its plan, and the order in which a copy calls them.

Where the blocks are is said by transformers for about half of its causal language models (the configuration's
``base_model_pp_plan``), and by `fullbore.models.hugging_face.families` for some others. What comes before the first
block is the layer "embed", what comes after the last one "head"; between the blocks of an encoder and those of a
decoder there is a layer of what runs there. Nothing else is guessed: families without either are refused, and so are
models that call their modules in another order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fullbore.errors import ModelError
from fullbore.models.containers import walk
from fullbore.models.hugging_face.families import BLOCKS, UNSPLITTABLE
from fullbore.models.layer import Layer

__all__ = ["PipelinePlan", "blocks_of", "check_config", "read_plan"]

_INSTEAD = "write a module whose pipeline_layers() gives its (name, module) pairs, or train another family"


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Full module names."""

    names: tuple[str, ...]
    """Of the layers."""

    parts: tuple[tuple[str, ...], ...]
    """The modules of each layer, in the order they are called, and at last those that are never called."""

    blocks: frozenset[str]
    """The layers that are one block."""

    shared_parts: tuple[str, ...]
    """What every stage has: modules without weights, such as rotary embeddings."""

    idle_parts: tuple[str, ...]
    """Never called, and with no weight that is not in a layer as well: names for a weight that others share."""

    projection: str
    """What makes logits: the last part with weights."""

    frames: tuple[str, ...]
    """The modules around all these, whose own forward connects them; the innermost first."""

    def layers(self, model: nn.Module) -> tuple[Layer, ...]:
        """Of the model the plan was read from, or a copy of it."""
        return tuple(
            Layer(name, tuple((part, model.get_submodule(part)) for part in parts))
            for name, parts in zip(self.names, self.parts, strict=True)
        )

    def shared(self, model: nn.Module) -> Layer:
        """What every stage has; also the buffers that lie in a frame itself."""
        modules = [(name, model.get_submodule(name)) for name in self.shared_parts]
        frames = [(name, _bare(model.get_submodule(name))) for name in self.frames]
        return Layer("shared", (*modules, *((name, frame) for name, frame in frames if frame._buffers)))

    @property
    def called(self) -> tuple[str, ...]:
        """All parts in layers."""
        return tuple(part for parts in self.parts for part in parts)


def check_config(config: Any) -> None:
    """Refuse by name, from the configuration alone, what cannot be split.

    Raises:
        ModelError: without a plan, known not to be splittable, or with layers that are left out at random.
    """
    family = config.model_type
    if family in UNSPLITTABLE:
        raise ModelError(f"{family} cannot be cut between its layers: {UNSPLITTABLE[family]}; {_INSTEAD}")
    if family not in BLOCKS and not getattr(config, "base_model_pp_plan", None):
        raise ModelError(
            f"{family} has no pipeline plan in transformers, and splitting it by guessing could be silently wrong; "
            f"{_INSTEAD}"
        )
    for key, value in config.to_dict().items():
        if key.endswith("layerdrop") and value:
            raise ModelError(
                f"{family} leaves out layers at random ({key}={value}), and what crosses between stages would differ "
                f"from step to step; set {key} to 0"
            )


def blocks_of(model: Any) -> tuple[str, ...]:
    """Full names of the model's lists of blocks, in the order of the forward.

    Raises:
        ModelError: its plan has an unknown form.
    """
    family, base = model.config.model_type, model.base_model_prefix
    if family in BLOCKS:
        return BLOCKS[family]
    names = list(model.config.base_model_pp_plan)
    children = dict(model.get_submodule(base).named_children())
    lists = [name for name in names if isinstance(children.get(name), nn.ModuleList)]
    absent = [name for name in names if name not in children]
    if absent or len(lists) != 1 or names.index(lists[0]) == 0:
        found = f"the model has no {', '.join(absent)}" if absent else f"lists of blocks: {', '.join(lists) or 'none'}"
        raise ModelError(
            f"a pipeline plan names an embedding, one list of blocks and what follows; that of {family} is "
            f"{', '.join(names)} ({found}); {_INSTEAD}"
        )
    return (f"{base}.{lists[0]}",)


def read_plan(model: nn.Module, blocks: Sequence[str], call: Callable[[], Any], *, base: str) -> PipelinePlan:
    """Run ``call``, a forward of the whole ``model``, and note which module outside of the blocks runs when.

    Args:
        model: a small copy; all its weights train.
        base: prefix that names of layers go without.

    Raises:
        ModelError: a block does not run once and in order, or a weight lies outside of everything that runs between.
    """
    family = type(model).__name__
    frames, outside = _around(model, blocks)
    for frame in frames:
        for name, _ in model.get_submodule(frame).named_parameters(recurse=False, prefix=frame):
            raise ModelError(
                f"every weight lies in a module with a place in the pipeline, but {name} of {family} does not; "
                f"{_INSTEAD}"
            )
    for name in blocks:
        if not _length(model, name):
            raise ModelError(f"a pipeline needs at least one block ({name} of {family} has none)")
    of_list = [[f"{name}.{index}" for index in range(_length(model, name))] for name in blocks]
    order = [block for names in of_list for block in names]
    calls = _calls(model, [*outside, *order], call)
    ran = [name for name in calls.order if name in order]
    if ran != order:
        raise ModelError(
            f"{family} cannot be split: its forward does not call each block once and in order; {_INSTEAD}"
        )
    made: list[tuple[str, list[str]]] = [("embed", [])]
    ends = {names[-1] for names in of_list}
    previous = ""
    for name in calls.order:
        if name in order:
            made.append((name.removeprefix(f"{base}."), [name]))
            previous = name
        elif _weighs(model, name) or (calls.order.count(name) == 1 and name in calls.trained):
            if calls.order.count(name) > 1:
                raise ModelError(f"{family} cannot be split: its forward calls {name} more than once; {_INSTEAD}")
            if previous in ends:
                made.append(("", []))
            elif previous in order:
                if not _weighs(model, name):
                    continue
                raise ModelError(f"{family} cannot be split: it calls {name} between two of its blocks; {_INSTEAD}")
            made[-1][1].append(name)
            previous = ""
    if made[-1][0]:
        raise ModelError(f"{family} cannot be split: no module of its own follows its last block; {_INSTEAD}")
    named = [(name or parts[0].removeprefix(f"{base}."), parts) for name, parts in made]
    named[-1] = ("head", named[-1][1])
    held = {id(p) for _, parts in named for part in parts for p in model.get_submodule(part).parameters()}
    for name in outside:
        if name not in calls.order and any(id(p) not in held for p in model.get_submodule(name).parameters()):
            named[0][1].append(name)
    parts = tuple(tuple(parts) for _, parts in named)
    planned = {part for names in parts for part in names}
    return PipelinePlan(
        names=tuple(name for name, _ in named),
        parts=parts,
        blocks=frozenset(name.removeprefix(f"{base}.") for name in order),
        shared_parts=tuple(name for name in outside if name not in planned and not _weighs(model, name)),
        idle_parts=tuple(name for name in outside if name not in planned and _weighs(model, name)),
        projection=[name for name in calls.order if name in planned and _weighs(model, name)][-1],
        frames=frames,
    )


@dataclass(frozen=True, slots=True)
class _Calls:
    order: list[str]
    trained: set[str]
    """Those whose output depends on a weight."""


def _calls(model: nn.Module, names: Sequence[str], call: Callable[[], Any]) -> _Calls:
    """Which of the modules run in ``call``, in order; one that runs inside another does not count."""
    found = _Calls([], set())
    depth: list[str] = []
    handles = []
    for name in names:

        def before(module: nn.Module, args: Any, name: str = name) -> None:
            if depth and _weighs(model, name):
                raise ModelError(
                    f"{type(model).__name__} cannot be split: it calls {name} inside {depth[-1]}; {_INSTEAD}"
                )
            if not depth:
                found.order.append(name)
            depth.append(name)

        def after(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            depth.pop()
            if any(tensor.requires_grad for _, tensor in walk(output)):
                found.trained.add(name)

        module = model.get_submodule(name)
        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        with torch.enable_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _around(model: nn.Module, blocks: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The frames around the lists of blocks, and the modules in them that are neither frame nor block."""
    inside = {"", *(name.rpartition(".")[0] for name in blocks)}
    for name in list(inside):
        inside |= {name[:at] for at, letter in enumerate(name) if letter == "."}
    outside: list[str] = []
    seen: set[nn.Module] = set()

    def visit(name: str) -> None:
        for child, module in model.get_submodule(name).named_children():
            full = f"{name}.{child}" if name else child
            if module in seen:
                continue
            seen.add(module)
            if full in inside or (isinstance(module, (nn.ModuleList, nn.ModuleDict)) and full not in blocks):
                visit(full)
            elif full not in blocks:
                outside.append(full)

    visit("")
    return tuple(sorted(inside, key=len, reverse=True)), outside


def _bare(module: nn.Module) -> nn.Module:
    """The module's own tensors and class, without its children; tensors put into it are put into the module."""
    made = copy.copy(module)
    made._modules = {}
    return made


def _weighs(model: nn.Module, name: str) -> bool:
    return any(True for _ in model.get_submodule(name).parameters())


def _length(model: nn.Module, name: str) -> int:
    found = model.get_submodule(name)
    assert isinstance(found, nn.ModuleList)
    return len(found)
