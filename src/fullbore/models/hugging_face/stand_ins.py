"""What stands in a stage for modules that it does not run itself, and around those whose values leave it.

Every stage calls the whole model, with the modules of other stages replaced. One of an earlier stage gives what came
from there, and blanks where nobody reads it (`Earlier`). The first one of a later stage that is called ends the pass
(`Later`): by then all that it would be made from has been given. So whatever the model's own forward does between two
modules happens as in the whole model, and what it does to blanks is thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from fullbore.models.containers import at, put
from fullbore.models.hugging_face.flow import Blank, Dimension, Effect, Flow, Leaf, Same, Value, handed_over

__all__ = ["Earlier", "Later", "Passage", "Reached", "Recorded", "stand_in_attributes"]


class Reached(Exception):
    """A module of a later stage was called: this stage's pass is over."""


class Passage:
    """One pass of one stage: what has arrived, and what is to leave."""

    def __init__(self, *, blank: float) -> None:
        """``blank``: what stands where nothing has to be read; NaN shows who reads it."""
        self.blank = blank
        self.given: dict[Value, Tensor] = {}
        self.kept: dict[Value, Tensor] = {}
        self.calls: Counter[str] = Counter()
        self.device = torch.device("cpu")

    def begin(self, given: Mapping[Value, Tensor], *, device: torch.device) -> None:
        """Forget the last pass."""
        self.given = dict(given)
        self.kept = {}
        self.calls = Counter()
        self.device = device

    def leave(self, values: Sequence[Value]) -> tuple[Tensor, ...]:
        """The tensors of these, and forget everything."""
        found = tuple(self.kept[value] if value in self.kept else self.given[value] for value in values)
        self.given, self.kept = {}, {}
        return found

    def next_call(self, part: str) -> int:
        """Counts the calls of a part."""
        self.calls[part] += 1
        return self.calls[part] - 1


class Earlier(nn.Module):
    """For a module of an earlier stage: gives what it gave there, and blanks where nobody reads it.

    It answers for the plain attributes of the module it stands for, and for the type and device of its weights: a model
    that asks its layer for ``attention_type`` inside the loop gets the same answer as in the whole model. (Shrinking
    the list of layers instead shifts sliding and full attention silently.)
    """

    def __init__(
        self,
        original: nn.Module,
        *,
        part: str,
        flow: Flow,
        passage: Passage,
        hidden_size: int,
    ) -> None:
        super().__init__()
        stand_in_attributes(self, original)
        self._dtypes = {
            name: tensor.dtype
            for name, tensor in (*original._parameters.items(), *original._buffers.items())
            if tensor is not None
        }
        self._hidden_size = hidden_size
        self._part = part
        self._flow = flow
        self._passage = passage
        self._width = _width(original)

    def __getattr__(self, name: str) -> Any:
        """A tensor without elements for a weight: models ask one for its type or device."""
        dtypes = self.__dict__.get("_dtypes", {})
        if name in dtypes:
            return torch.empty(0, dtype=dtypes[name], device=self._passage.device)
        return super().__getattr__(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self._flow.of(self._part)[self._passage.next_call(self._part)]
        handed = handed_over(args, kwargs)
        for effect in call.effects:
            self._leave(effect, handed)
        return tree_unflatten([self._leaf(leaf, handed) for leaf in call.leaves], call.spec)

    def _leaf(self, leaf: Leaf, handed: Any) -> Any:
        if isinstance(leaf, Same):
            return at(handed, leaf.path)
        if not isinstance(leaf, Blank):
            return leaf
        found = self._passage.given.get(leaf.value)
        return self._blank(leaf, handed) if found is None else found

    def _blank(self, leaf: Blank, handed: Any) -> Tensor | None:
        """Of the right shape, and of no size in memory; None where that follows from something absent."""
        found = [self._dimension(dimension, handed) for dimension in leaf.shape]
        shape = [size for size in found if size is not None]
        if len(shape) < len(found):
            return None
        fact = self._flow.facts[leaf.value]
        number = self._passage.blank if fact.dtype.is_floating_point else 0
        blank = torch.full((), number, dtype=fact.dtype, device=self._passage.device).expand(shape)
        return blank.clone() if fact.overwritten else blank

    def _dimension(self, dimension: Dimension, handed: Any) -> int | None:
        if isinstance(dimension, int):
            return dimension
        if isinstance(dimension, str):
            return self._width if dimension == "width" else self._hidden_size
        path, axis = dimension
        given = at(handed, path)
        if axis is None:
            return int(given)
        return given.shape[axis] if isinstance(given, Tensor) else None

    def _leave(self, effect: Effect, handed: Any) -> None:
        """Fill a container, if everything that lies there has arrived; a list keeps its length."""
        container = at(handed, effect.container)
        leaves = [
            self._passage.given.get(leaf.value) if isinstance(leaf, Blank) else self._leaf(leaf, handed)
            for leaf in effect.leaves
        ]
        absent = any(isinstance(leaf, Blank) and leaf.value not in self._passage.given for leaf in effect.leaves)
        if not absent or isinstance(container, list):
            put(container, effect.key, tree_unflatten(leaves, effect.spec))


class Later(nn.Module):
    """For a module of a later stage."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        stand_in_attributes(self, original)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise Reached


class Recorded(nn.Module):
    """Around a module of this stage that gives something to a later one."""

    def __init__(self, inner: nn.Module, *, part: str, flow: Flow, passage: Passage) -> None:
        super().__init__()
        self.inner = inner
        self._part = part
        self._flow = flow
        self._passage = passage

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self._flow.of(self._part)[self._passage.next_call(self._part)]
        output = self.inner(*args, **kwargs)
        self._keep(call.leaves, output)
        if call.effects:
            handed = handed_over(args, kwargs)
            for effect in call.effects:
                self._keep(effect.leaves, at(handed, (*effect.container, effect.key)))
        return output

    def _keep(self, leaves: Sequence[Leaf], given: Any) -> None:
        tensors, _ = tree_flatten(given)
        assert len(tensors) == len(leaves), f"{self._part} gives another structure than in the copy"
        for leaf, tensor in zip(leaves, tensors, strict=True):
            if isinstance(leaf, Blank):
                overwritten = self._flow.facts[leaf.value].overwritten
                self._passage.kept[leaf.value] = tensor.clone() if overwritten else tensor


def stand_in_attributes(module: nn.Module, original: nn.Module) -> None:
    """Give ``module`` the plain attributes of the one it stands for.

    A ``forward`` among them wraps the original for another stage of this process (keys, recomputation); it would run.
    """
    for name, value in vars(original).items():
        if name == "forward" or name.startswith("_"):
            continue
        if name not in vars(module) and not isinstance(value, Tensor):
            setattr(module, name, value)


def _width(original: nn.Module) -> int | None:
    """The last dimension of what a table or a projection gives."""
    if isinstance(original, nn.Embedding):
        return original.embedding_dim
    return original.out_features if isinstance(original, nn.Linear) else None
