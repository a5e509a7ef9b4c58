"""What a `WeightSplit` has to be and to give, and what its module has to hold.

Its results are used without autograd, which would notice that they do not fit, so they are checked here. Every refusal
names the class that was registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from fullbore.errors import ModelError

__all__ = ["checked_gradients", "checked_run", "is_own", "require_known", "require_names"]


def require_names(split: type, names: object) -> None:
    """Raises ModelError for anything but a tuple of different names, at least one."""
    given = names if isinstance(names, tuple) else ()
    words = all(isinstance(name, str) and name.isidentifier() for name in given)
    if not (words and given and len(set(given)) == len(given)):
        raise ModelError(
            f"{split.__name__}.parameters is a tuple of the names of the module's weights, as in ('weight',) "
            f"(given {names!r})"
        )


def require_known(split: type, module: nn.Module, names: Sequence[str]) -> None:
    """Raises ModelError where the module has nothing of such a name, be it no weight."""
    for name in names:
        try:
            if not is_own(module, name):
                getattr(module, name)
        except AttributeError:
            known = ", ".join(module._parameters) or "none"
            raise ModelError(
                f"{split.__name__}.parameters names {name!r}, and this {type(module).__name__} has nothing of that "
                f"name (its weights: {known}); where a weight may be absent, the module sets it to None"
            ) from None


def is_own(module: nn.Module, name: str) -> bool:
    """Is what the module's forward sees under this name its own parameter, or None?

    Not so: a buffer or plain tensor in its place, a property, a parametrization. Looks without calling: a property may
    do something (the power iteration of `torch.nn.utils.parametrizations.spectral_norm`).
    """
    before = [vars(kind)[name] for kind in type(module).__mro__ if name in vars(kind)]
    if name in vars(module):
        before.append(vars(module)[name])
    if before:  # Python finds these, and never asks the module
        return all(value is None for value in before) and module._parameters.get(name) is None
    return name in module._parameters


def checked_run(split: type, given: Tensor, result: object) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What `WeightSplit.run` gave. Raises ModelError where it is no output with what was kept, or where no gradient
    would pass through the output."""
    match result:
        case (Tensor() as output, tuple() | list() as kept) if all(isinstance(one, Tensor) for one in kept):
            if given.requires_grad and not output.requires_grad:
                raise ModelError(
                    f"{split.__name__}.run gives an output without a gradient, although its input has one: nothing "
                    "before it would train; compute the output from x with torch operations, without detaching it"
                )
            return output, tuple(kept)
    raise ModelError(
        f"{split.__name__}.run gives two things, the output and a tuple of the tensors that weight_gradients needs "
        f"(given {_said(result)})"
    )


def checked_gradients(
    split: type,
    result: object,
    *,
    of: Iterable[Tensor],
    names: Sequence[str],
    wanted: Sequence[bool],
    weights: Sequence[nn.Parameter],
) -> Sequence[Tensor]:
    """What `WeightSplit.weight_gradients` gave. Raises ModelError where it is not one tensor for each weight, of its
    shape: adding would broadcast it.

    Args:
        of: what it was given; other layers may still need these.
        names: of all weights.
        weights: those that are ``wanted``.
    """
    if isinstance(result, tuple | list) and len(result) == len(weights):
        for made, weight in zip(result, weights, strict=True):
            if not isinstance(made, Tensor) or made.shape != weight.shape:
                break
        else:
            return _apart(result, others=of)
    trained = [name for name, wants in zip(names, wanted, strict=True) if wants]
    needed = ", ".join(f"{name} {list(weight.shape)}" for name, weight in zip(trained, weights, strict=True))
    raise ModelError(
        f"{split.__name__}.weight_gradients gives a tuple of one tensor for each weight that trains, of its shape: "
        f"{needed} (given {_said(result)})"
    )


def _apart(made: Sequence[Tensor], *, others: Iterable[Tensor]) -> Sequence[Tensor]:
    """Each becomes a gradient that is added to in place, so none may be another's memory too, nor another of
    ``others``."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in others}
    apart = []
    for tensor in made:
        storage = tensor.untyped_storage().data_ptr()
        apart.append(tensor.clone() if storage in taken else tensor)
        taken.add(storage)
    return apart


def _said(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: {', '.join(map(_said, value))}" if value else "nothing"
    return "None" if value is None else type(value).__name__
