"""Flow: what the parts of a Hugging Face model give each other in one forward, found by running a tiny copy.

A *part* is a module outside of which there are no weights: the token embedding, each block, the last norm, the
projection. Whatever depends on weights is then made from values that parts give: what they return, and what they put
into containers that they were handed. The forward of the model's own class connects them. So a cut before layer k is
complete if every value that a part of layers 0 to k-1 gives, and that something later is made from, is carried
across; all else (rotary embeddings, masks, position ids) the next stage computes for itself from the same inputs.

    embed ──a──► block 0 ──b──► block 1 ──c──► head        before block 1: b, and a as well if block 1 or the head
                     └────k────────►┘                      also reads it; k if block 0 leaves keys for block 1

Labels that follow every operation (`fullbore.models.hugging_face.taint`) say what is made from what, also for integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from transformers.utils.output_capturing import _active_collector

from fullbore.models.containers import Path, fillable, items, leaves, put, walk
from fullbore.models.hugging_face.taint import Taint

__all__ = [
    "Blank",
    "Dimension",
    "Effect",
    "Fact",
    "Flow",
    "Handed",
    "Leaf",
    "PartCall",
    "Same",
    "Value",
    "handed_over",
    "observe",
    "trace_flow",
]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that a part gives."""

    part: str
    """Full module name."""

    call: int
    """How many times the part was called before."""

    place: Path
    """("returned", number of the leaf), or ("left in", path of the container..., key, number of the leaf)."""

    def __str__(self) -> str:
        return f"{self.part} {'.'.join(str(key) for key in self.place)}"


@dataclass(frozen=True, slots=True)
class Same:
    """A leaf of a part's output that is one of the tensors it was given."""

    path: Path


Dimension = tuple[Path, int | None] | int | Literal["width", "hidden"]
"""That of an argument (or the argument itself, a number), a constant, the width of the part's own table or projection,
or that of the hidden states. (A constant of the copy may be another one in the model; then the blank does not fit, and
the pass fails.)"""


@dataclass(frozen=True, slots=True)
class Blank:
    """A leaf that is new: a `Value`. Where nobody reads it, a blank of the right shape does."""

    value: Value
    shape: tuple[Dimension, ...]


Leaf = Same | Blank | object
"""An object stands for itself."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that a part puts into a container it was handed."""

    container: Path
    key: Any
    spec: TreeSpec
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class PartCall:
    """One call of a part."""

    part: str
    needs: frozenset[Value]
    """What its arguments are made from; of the containers among them, only what its output is made from as well."""

    spec: TreeSpec
    leaves: tuple[Leaf, ...]
    effects: tuple[Effect, ...]

    @property
    def gives(self) -> tuple[Value, ...]:
        """Its values."""
        leaves = (*self.leaves, *(leaf for effect in self.effects for leaf in effect.leaves))
        return tuple(leaf.value for leaf in leaves if isinstance(leaf, Blank))


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value from the copy."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool
    overwritten: bool
    """Whether the model's forward later changes it in place."""


@dataclass(frozen=True)
class Flow:
    """Calls in order."""

    calls: tuple[PartCall, ...]
    result: frozenset[Value]
    """What the model's result is made from."""

    facts: Mapping[Value, Fact]

    def __deepcopy__(self, memo: dict[int, object]) -> Flow:
        return self

    def crossing(self, earlier: Collection[str]) -> tuple[Value, ...]:
        """The values of the parts ``earlier`` that the others or the result are made from, in order of origin."""
        later = self.result.union(*(call.needs for call in self.calls if call.part not in earlier))
        return tuple(value for call in self.calls if call.part in earlier for value in call.gives if value in later)

    def of(self, part: str) -> tuple[PartCall, ...]:
        """The calls of one part."""
        return self._by_part[part]

    @cached_property
    def _by_part(self) -> Mapping[str, tuple[PartCall, ...]]:
        found: dict[str, tuple[PartCall, ...]] = {}
        for call in self.calls:
            found[call.part] = (*found.get(call.part, ()), call)
        return found


Handed = dict[str, Any]
"""What a call is handed: its arguments, and where transformers collects what it is asked to record."""


def handed_over(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Handed:
    """For one call, under way."""
    return {"args": args, "kwargs": kwargs, "recorded": _active_collector.get()}


def trace_flow(model: Any, call: Callable[[], Any], *, parts: Sequence[str]) -> Flow:
    """Run ``call``, a forward of the whole ``model``, twice, and watch its parts: for labels, then for gradients.

    Args:
        model: a small copy, with values in its weights.
        call: gives the results that somebody reads, and nothing else.
        parts: full names of modules, none inside another.
    """
    hidden_size = model.config.get_text_config().hidden_size
    taint = Taint[Value]()
    labels = _Watch(taint, hidden_size=hidden_size)
    with torch.no_grad(), labels.on(model, parts), taint:
        result = call()
    gradients = _Watch(None, hidden_size=hidden_size)
    with torch.enable_grad(), gradients.on(model, parts):
        call()
    facts = {
        value: Fact(tuple(tensor.shape), tensor.dtype, gradients.needing[value], tensor._version != 0)
        for value, tensor in labels.found.items()
    }
    return Flow(tuple(labels.calls), taint.of([tensor for _, tensor in walk(result)]), facts)


def observe(model: Any, call: Callable[[], Any], *, parts: Sequence[str]) -> Mapping[Value, Tensor]:
    """What the parts give in one forward."""
    watch = _Watch(None, hidden_size=model.config.get_text_config().hidden_size)
    with torch.no_grad(), watch.on(model, parts):
        call()
    return watch.found


@dataclass(frozen=True, slots=True)
class _Open:
    """A part that is running."""

    part: str
    needs: frozenset[Value]
    paths: Mapping[int, Path]
    """Of the tensors it was handed, by identity."""

    held: Mapping[Path, Mapping[Any, object]]
    """What was in the containers it was handed."""

    weighs: bool
    """Whether it has weights. One without (dropout) may give back what it was handed, and at another time not."""


class _Watch:
    """Hooks on the parts, for one forward. With labels, what a part gives carries its own and no others."""

    def __init__(self, taint: Taint[Value] | None, *, hidden_size: int) -> None:
        self.calls: list[PartCall] = []
        self.found: dict[Value, Tensor] = {}
        self.needing: dict[Value, bool] = {}
        """Whether a gradient comes back to it."""

        self._taint = taint
        self._hidden_size = hidden_size
        self._open: _Open | None = None

    @contextmanager
    def on(self, model: nn.Module, parts: Sequence[str]) -> Iterator[None]:
        """Watch inside."""
        handles = []
        for part in parts:
            module = model.get_submodule(part)
            handles.append(module.register_forward_pre_hook(self._before(part), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, part: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            weighs = next(module.parameters(), None) is not None
            handed = handed_over(args, kwargs)
            tensors = [(path, tensor) for path, tensor in walk(handed) if path[0] != "recorded"]
            held = {path: dict(items(container)) for path, container in fillable(handed)}
            inside = tuple(path for path in held if len(path) > 1)
            needs = self._labels(t for path, t in tensors if not any(path[: len(at)] == at for at in inside))
            assert self._open is None, f"{part} runs inside {self._open}"
            self._open = _Open(part, needs, {id(t): path for path, t in tensors}, held, weighs)

        return hook

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        running, self._open = self._open, None
        assert running is not None
        number = sum(call.part == running.part for call in self.calls)
        handed = handed_over(args, kwargs)
        needs = running.needs | self._labels(tensor for _, tensor in walk(output))
        effects = []
        for path, container in fillable(handed):
            before = running.held.get(path, {})
            for key, entry in list(items(container)):
                if key not in before or before[key] is not entry:
                    place = ("left in", *path, key)
                    needs |= self._labels(tensor for _, tensor in walk(entry))
                    spec, given, made = self._give(running, number, place, entry)
                    put(container, key, made)
                    effects.append(Effect(path, key, spec, tuple(given)))
        arguments = [(path, leaf) for path, leaf in leaves(handed) if path[0] != "recorded"]
        follows = partial(_follows, module=module, arguments=arguments, hidden_size=self._hidden_size)
        spec, given, made = self._give(running, number, ("returned",), output, follows=follows)
        self.calls.append(PartCall(running.part, needs, spec, tuple(given), tuple(effects)))
        return made

    def _labels(self, tensors: Iterable[Tensor]) -> frozenset[Value]:
        return frozenset() if self._taint is None else self._taint.of(list(tensors))

    def _give(
        self,
        running: _Open,
        number: int,
        place: Path,
        entry: Any,
        *,
        follows: Callable[[Value, tuple[int, ...]], Blank] = lambda value, shape: Blank(value, shape),
    ) -> tuple[TreeSpec, list[Leaf], Any]:
        """The leaves of something given, and the same thing made of tensors of its own."""
        tensors, spec = tree_flatten(entry)
        given: list[Leaf] = []
        made: list[Any] = []
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                given.append(tensor)
            elif running.weighs and id(tensor) in running.paths:
                given.append(Same(running.paths[id(tensor)]))
            else:
                value = Value(running.part, number, (*place, index))
                given.append(follows(value, tuple(tensor.shape)))
                self.needing[value] = tensor.requires_grad
                tensor = tensor.clone()
                self.found[value] = tensor
                if self._taint is not None:
                    self._taint.mark(tensor, frozenset([value]))
            made.append(tensor)
        return spec, given, tree_unflatten(made, spec)


def _follows(
    value: Value,
    shape: tuple[int, ...],
    *,
    module: nn.Module,
    arguments: Sequence[tuple[Path, Any]],
    hidden_size: int,
) -> Blank:
    """How the shape of a value follows from the arguments of the call that gave it."""
    tensors = [(path, tuple(leaf.shape)) for path, leaf in arguments if isinstance(leaf, Tensor)]
    known: dict[int, Dimension] = {leaf: (path, None) for path, leaf in arguments if type(leaf) is int}
    known |= {size: (path, axis) for path, given in reversed(tensors) for axis, size in enumerate(given)}
    dimensions = [known.get(size, size) for size in shape]
    if isinstance(module, (nn.Embedding, nn.Linear)):
        return Blank(value, (*dimensions[:-1], "width"))
    for path, given in tensors:
        if given == shape:
            return Blank(value, tuple((path, axis) for axis in range(len(shape))))
    if shape and shape[-1] == hidden_size:
        dimensions[-1] = "hidden"
    return Blank(value, tuple(dimensions))
