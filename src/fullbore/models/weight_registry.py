"""The registry of split backwards: which modules leave their weight gradient for later, and how.

A rule is registered for a class and found by the *code* of its forward, so that it serves subclasses which inherit that
forward, and copies: transformers writes the same RMS norm under more than a hundred names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FunctionType

from torch import nn

from fullbore.errors import ModelError
from fullbore.models.weight_queue import Deferral
from fullbore.models.weight_split import SplitForward, WeightSplit
from fullbore.models.weight_splits import SPLITS

__all__ = ["apply_weight_splits", "register_weight_split", "split_of"]

_RULES: dict[CodeType, tuple[FunctionType, type[WeightSplit]]] = {}
"""By the code of a forward. Open to registration, as `functools.singledispatch` is."""


def register_weight_split(kind: type[nn.Module], split: type[WeightSplit]) -> None:
    """Split the backward of modules of this class, and of every class with the same ``forward``: a subclass that
    inherits it, or a copy, as the norms of Hugging Face models are.

    The last registration counts. Pipelines that are already built stay as they are.

    Raises:
        ModelError: ``kind`` is no module class with a forward of its own, or ``split`` no `WeightSplit`.
    """
    if not (isinstance(split, type) and issubclass(split, WeightSplit)):
        raise ModelError(f"a weight split is a subclass of fullbore.WeightSplit (given {split!r})")
    forward = getattr(kind, "forward", None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module) and isinstance(forward, FunctionType)):
        raise ModelError(f"a weight split is registered for a module class that has a forward (given {kind!r})")
    _RULES[_known(forward) or forward.__code__] = (forward, split)


def split_of(module: nn.Module) -> type[WeightSplit] | None:
    """What is registered for the forward that this module runs; None: nothing, or its forward is not its class's."""
    forward = getattr(type(module), "forward", None)
    if "forward" in vars(module) or not isinstance(forward, FunctionType):
        return None
    code = _known(forward)
    return None if code is None else _RULES[code][1]


def apply_weight_splits(
    root: nn.Module, deferral: Deferral, *, leave: Collection[nn.Module] = ()
) -> tuple[Callable[[], None], Mapping[str, int]]:
    """Wrap the forward of every module of ``root`` whose class is registered. Apply it before random keys,
    recomputation and whatever else wraps a forward.

    Args:
        deferral: its queue takes the weight gradients while there is one.
        leave: modules that stay as they are, with all in them (compiled ones: their backward is one piece).

    Returns:
        What takes it back; and class name -> number of modules with trainable weights of their own whose backward
        stays whole.
    """
    left = {part for module in leave for part in module.modules()}
    wrapped: list[nn.Module] = []
    whole: Counter[str] = Counter()
    for module in root.modules():
        if not any(weight.requires_grad for weight in module.parameters(recurse=False)):
            continue
        split = None if module in left else split_of(module)
        if split is None:
            whole[type(module).__name__] += 1
        else:
            module.forward = SplitForward(split(module), module.forward, deferral)
            wrapped.append(module)

    def undo() -> None:
        for module in wrapped:
            vars(module).pop("forward", None)

    return undo, dict(whole)


def _known(forward: FunctionType) -> CodeType | None:
    """The registered code that does what this function does."""
    if forward.__code__ in _RULES:
        return forward.__code__
    for code, (registered, _) in _RULES.items():
        if _same(registered, forward):
            return code
    return None


def _same(one: FunctionType, other: FunctionType) -> bool:
    """Same instructions on the same names, and the globals among these are the same objects."""
    a, b = one.__code__, other.__code__
    if (a.co_code, a.co_names, a.co_varnames, a.co_consts) != (b.co_code, b.co_names, b.co_varnames, b.co_consts):
        return False
    if a.co_freevars or b.co_freevars:
        return False
    return all(one.__globals__.get(name) is other.__globals__.get(name) for name in a.co_names)


for _kind, _rule in SPLITS.items():
    register_weight_split(_kind, _rule)
