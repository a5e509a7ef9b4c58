"""The registry of split backwards: which modules leave their weight gradient for later, and how.

A rule is registered for a class and found by its forward, so that it serves subclasses which inherit that forward, and
copies of its *code*: transformers writes the same RMS norm under more than a hundred names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from fullbore.errors import ModelError
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.split_forward import SplitForward
from fullbore.models.split_backward.weight_contract import is_own, require_known, require_names
from fullbore.models.split_backward.weight_split import OperationSplit, WeightSplit
from fullbore.models.split_backward.weight_splits import SPLITS

__all__ = ["apply_weight_splits", "register_weight_split", "split_of"]

_RULES: dict[FunctionType, type[WeightSplit]] = {}
"""By forward. Open to registration, as `functools.singledispatch` is."""


def register_weight_split(kind: type[nn.Module], split: type[WeightSplit] | None) -> None:
    """Split the backward of modules of this class, and of every class with the same ``forward``: a subclass that
    inherits it, or a copy, as the norms of Hugging Face models are.

    The last registration counts. Pipelines that are already built stay as they are.

    Args:
        split: None takes the registration back: the backward of these modules stays whole.

    Raises:
        ModelError: ``kind`` is no module class with a forward of its own, or ``split`` no `WeightSplit` with a `run`,
            `weight_gradients` and the names of its `parameters`.
    """
    forward = getattr(kind, "forward", None)
    if not (
        isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and isinstance(forward, FunctionType)
        and forward is not nn.Module.forward
    ):
        raise ModelError(f"a weight split is registered for a module class that has a forward (given {kind!r})")
    known = _known(forward)
    if split is None:
        if known is not None:
            del _RULES[known]
        return
    _require_split(split)
    _RULES[known or forward] = split


def split_of(module: nn.Module) -> type[WeightSplit] | None:
    """What is registered for the forward that this module runs; None: nothing, or its forward is not its class's."""
    forward = getattr(type(module), "forward", None)
    if "forward" in vars(module) or not isinstance(forward, FunctionType):
        return None
    known = _known(forward)
    return None if known is None else _RULES[known]


def apply_weight_splits(
    root: nn.Module, deferral: Deferral, *, leave: Collection[nn.Module] = ()
) -> tuple[Callable[[], None], Mapping[str, int]]:
    """Wrap the forward of every module of ``root`` whose class is registered. Apply it before random keys,
    recomputation and whatever else wraps a forward.

    Args:
        deferral: its queue takes the weight gradients while there is one.
        leave: modules that stay as they are, with all in them (compiled ones: their backward is one piece).

    Raises:
        ModelError: somebody's split names a weight that a module of its class has nothing for, or cannot be made for
            one. No module is wrapped then.

    Returns:
        What takes it back; and class name -> number of modules with trainable weights of their own whose backward
        stays whole.
    """
    left = {part for module in leave for part in module.modules()}
    found: list[tuple[nn.Module, type[WeightSplit]]] = []
    whole: Counter[str] = Counter()
    for module in root.modules():
        if isinstance(module, ParametrizationList) or not _trains(module):
            continue
        split = None if module in left else split_of(module)
        if split is not None and split not in SPLITS.values():
            require_known(split, module, split.parameters)
        if split is None or not all(is_own(module, name) for name in split.parameters):
            whole[type(module).__name__] += 1
        else:
            found.append((module, split))
    made = [(module, _made(split, module)) for module, split in found]
    for module, its in made:
        module.forward = SplitForward(its, module.forward, deferral)

    def undo() -> None:
        for module, _ in found:
            vars(module).pop("forward", None)

    return undo, dict(whole)


def _made(split: type[WeightSplit], module: nn.Module) -> WeightSplit:
    try:
        return split(module)
    except Exception as error:
        raise ModelError(
            f"{split.__name__} cannot be made for a module of class {type(module).__name__} "
            f"({type(error).__name__}: {error}); its constructor takes the module alone"
        ) from error


def _require_split(split: object) -> None:
    if not (isinstance(split, type) and issubclass(split, WeightSplit)):
        raise ModelError(f"a weight split is a subclass of fullbore.WeightSplit (given {split!r})")
    base = OperationSplit if issubclass(split, OperationSplit) else WeightSplit
    methods = ("compute", "input_gradient") if base is OperationSplit else ("run",)
    lacking = [name for name in (*methods, "weight_gradients") if getattr(split, name) is getattr(base, name)]
    if lacking:
        raise ModelError(f"{split.__name__} lacks {' and '.join(lacking)}, which every weight split has")
    require_names(split, split.parameters)


def _trains(module: nn.Module) -> bool:
    """Has it trainable weights of its own? What a parametrization holds is its owner's."""
    owners = [module]
    if is_parametrized(module):
        held: Any = module.parametrizations
        owners += held.children()
    return any(weight.requires_grad for owner in owners for weight in owner.parameters(recurse=False))


def _known(forward: FunctionType) -> FunctionType | None:
    """The registered function that does what this one does."""
    if forward in _RULES:
        return forward
    return next((registered for registered in _RULES if _same(registered, forward)), None)


def _same(one: FunctionType, other: FunctionType) -> bool:
    """Same instructions on the same names, same defaults, and the globals among the names are the same objects. What a
    function closes over may differ though its code does not, so none that does is another's copy."""
    a, b = one.__code__, other.__code__
    if (a.co_code, a.co_names, a.co_varnames, a.co_consts) != (b.co_code, b.co_names, b.co_varnames, b.co_consts):
        return False
    if (one.__defaults__, one.__kwdefaults__) != (other.__defaults__, other.__kwdefaults__):
        return False
    if a.co_freevars or b.co_freevars:
        return False
    return all(one.__globals__.get(name) is other.__globals__.get(name) for name in a.co_names)


for _kind, _rule in SPLITS.items():
    register_weight_split(_kind, _rule)
