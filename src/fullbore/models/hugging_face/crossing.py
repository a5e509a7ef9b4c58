"""The shapes of what crosses, for any microbatch, without a pass of the real model and without exchanging them.

Hidden states are `[batch, seq, hidden]`: arithmetic. Anything else (a position bias, a router's logits, keys and
values) takes its sizes from passes of the model at its real widths over tensors without values, at four batch sizes
and lengths: each dimension is then a number, a size of the batch or a product of two, and arithmetic from there on.
Where none fits (an index of at most so many tokens), such a pass is made for each new size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fullbore.errors import ModelError
from fullbore.models.hugging_face.cutter import crossing
from fullbore.models.hugging_face.flow import Value, observe
from fullbore.models.hugging_face.split import Sizes, Split
from fullbore.models.layered import Boundary, Microbatch, TensorSpec
from fullbore.models.microbatch import sequences_of
from fullbore.said import said

__all__ = ["Crossings"]


_TRIED = (Sizes(7, 2, 1), Sizes(3, 7, 5), Sizes(2, 4099, 4097), Sizes(5, 300_007, 300_005))

_Rule = tuple[int | str, ...] | None
"""Dimensions: numbers as they are, and positions in `_candidates` as "@0"; None where no rule fits."""


class Crossings:
    """Boundaries of one model, kept by size."""

    def __init__(self, model: Any, split: Split, *, dtype: torch.dtype) -> None:
        self._model = model
        self._split = split
        self._dtype = dtype
        self._hidden = int(model.config.get_text_config().hidden_size)
        self._known: dict[tuple[int, Sizes, frozenset[str]], Boundary] = {}
        self._rules: dict[frozenset[str], Mapping[Value, tuple[_Rule, torch.dtype]]] = {}
        self._passes: dict[tuple[Sizes, frozenset[str]], Mapping[Value, Tensor]] = {}
        self._empty: Any = None

    def boundary(self, layer: int, microbatch: Microbatch) -> Boundary:
        """What enters layer ``layer``."""
        sizes, keys = self._sizes(microbatch), frozenset(microbatch)
        at = (layer, sizes, keys)
        if at not in self._known:
            values = crossing(self._split.plan, self._split.flow, layer=layer)
            self._known[at] = Boundary(tuple(self._spec(value, sizes, keys) for value in values))
        return self._known[at]

    def _sizes(self, microbatch: Microbatch) -> Sizes:
        samples, length = sequences_of(microbatch, key="input_ids", reader="every stage")
        if not self._split.task.has_decoder:
            return Sizes(samples, length, 0)
        key = "decoder_input_ids" if "decoder_input_ids" in microbatch else "labels"
        return Sizes(samples, length, sequences_of(microbatch, key=key, reader="every stage")[1])

    def _spec(self, value: Value, sizes: Sizes, keys: frozenset[str]) -> TensorSpec:
        fact, tried, tiny = self._split.flow.facts[value], self._split.sizes, self._split.hidden_size
        for length, own in ((tried.length, sizes.length), (tried.target_length, sizes.target_length)):
            if fact.shape == (tried.samples, length, tiny) and fact.dtype == self._dtype:
                return TensorSpec((sizes.samples, own, self._hidden), fact.dtype, gradient=fact.gradient)
        if keys not in self._rules:
            self._rules[keys] = self._learn(keys)
        rule, dtype = self._rules[keys][value]
        if rule is None:
            at = (sizes, keys)
            if at not in self._passes:
                self._passes[at] = self._pass(sizes, keys)
            return TensorSpec(tuple(self._passes[at][value].shape), dtype, gradient=fact.gradient)
        shape = tuple(entry if isinstance(entry, int) else _candidates(sizes)[int(entry[1:])] for entry in rule)
        return TensorSpec(shape, dtype, gradient=fact.gradient)

    def _learn(self, keys: frozenset[str]) -> Mapping[Value, tuple[_Rule, torch.dtype]]:
        passes = [self._pass(sizes, keys) for sizes in _TRIED]
        return {
            value: (_rule([tuple(found[value].shape) for found in passes]), tensor.dtype)
            for value, tensor in passes[0].items()
        }

    def _pass(self, sizes: Sizes, keys: frozenset[str]) -> Mapping[Value, Tensor]:
        """Of the whole model at its real widths, over tensors without values."""
        model = self._without_values()
        task = self._split.task
        with torch.device("meta"), _Predicates():  # type: ignore[no-untyped-call]
            microbatch = {key: torch.zeros(_shape(key, sizes, task.per_sample), dtype=torch.long) for key in keys}
            try:
                return observe(
                    model,
                    lambda: model(**task.inputs(model, microbatch)),
                    parts=self._split.plan.called,
                )
            except Exception as error:
                raise ModelError(
                    f"what crosses between stages of {self._model.config.model_type} has a shape that cannot be "
                    f"foretold ({said(error)})"
                ) from error

    def _without_values(self) -> Any:
        """A copy on the meta device. Experts by batches: the other ways need to know how many tokens each has."""
        if self._empty is None:
            tensors = (*self._model.parameters(), *self._model.buffers())
            memo: dict[int, object] = {id(t): t for t in tensors if t.is_meta}
            memo |= {
                id(p): nn.Parameter(p.detach().to("meta"), False) for p in self._model.parameters() if not p.is_meta
            }
            memo |= {id(buffer): buffer.to("meta") for buffer in self._model.buffers() if not buffer.is_meta}
            self._empty = copy.deepcopy(self._model, memo)
            if self._empty._can_set_experts_implementation():
                self._empty.set_experts_implementation("batched_mm")
        return self._empty


class _Predicates(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Says yes to whether all tokens count, and the like: masks may then be left out, and no shape here follows from
    one. Any other number that a forward asks a tensor for fails, as there is none."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return True
        return func(*args, **(kwargs or {}))


def _shape(key: str, sizes: Sizes, per_sample: bool) -> tuple[int, ...]:
    if key == "labels" and per_sample:
        return (sizes.samples,)
    decoder = bool(sizes.target_length) and (key == "labels" or key.startswith("decoder_"))
    return (sizes.samples, sizes.target_length if decoder else sizes.length)


def _candidates(sizes: Sizes) -> tuple[int, ...]:
    """What a dimension may be."""
    b, s, t = sizes.samples, sizes.length, sizes.target_length
    return (b, s, t, b * s, b * t)


def _rule(shapes: Sequence[tuple[int, ...]]) -> _Rule:
    """Of the shapes at the sizes tried."""
    rule: list[int | str] = []
    for dims in zip(*shapes, strict=True):
        options: list[int | str] = [dims[0]] if len(set(dims)) == 1 else []
        options += [f"@{at}" for at in range(5) if dims == tuple(_candidates(sizes)[at] for sizes in _TRIED)]
        if not options:
            return None
        rule.append(options[0])
    return tuple(rule)
