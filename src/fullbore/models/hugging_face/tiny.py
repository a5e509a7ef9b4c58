"""A tiny copy of a model: what its split is found on and tried on."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from fullbore.errors import ModelError
from fullbore.models.hugging_face.adapters import Adapters
from fullbore.models.hugging_face.shrink import RANDOM, narrow
from fullbore.said import said

__all__ = ["built_small", "eager_experts", "randomized", "tiny_copy"]

_NEVER = 1e-12
"""A probability at which nothing random happens in a tiny copy, and which runs all the same code."""

_SMALL = 1_000_000
"""Parameters up to which a model with weights is tried itself."""


def tiny_copy(model: Any, *, meta: bool, adapters: Adapters | None = None) -> Any:
    """A model of the same class, structure and dtype with random weights, on the CPU; small ones at their own size.

    The weights that are frozen are frozen in the copy. The caller's random state is left as it was.

    Raises:
        ModelError: transformers cannot build the narrow configuration, or it has other weights than the model.
    """
    if not meta and sum(parameter.numel() for parameter in model.parameters()) <= _SMALL:
        made = copy.deepcopy(model).to("cpu")
    else:
        made = built_small(model, seed=0)
        if adapters is not None:
            made = adapters.put_into(made)
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.default_generator.manual_seed(0)
        randomized(made)
    given = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        if name not in given:
            break
        parameter.requires_grad_(given[name].requires_grad)
    names = {name for name, _ in made.named_parameters()}
    if names != given.keys():
        other = min(names ^ given.keys())
        raise ModelError(
            f"{type(model).__name__} is not what its configuration builds: {other} is in one of the two only; give the "
            "configuration that belongs to it"
        )
    _almost_certain(made)
    return made.train()


def built_small(model: Any, *, seed: int) -> Any:
    """Of the model's class and a narrow configuration, as transformers initialises it, on the CPU.

    Raises:
        ModelError: transformers cannot build it.
    """
    config = narrow(model.config)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        try:
            return type(model)._from_config(config, dtype=model.dtype)
        except Exception as error:
            raise ModelError(f"transformers cannot build a small {config.model_type}: {said(error)}") from error


def randomized(model: nn.Module) -> None:
    """Weights far from their starting values: ones and zeros would hide what is scaled or added twice."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.add_(torch.randn(parameter.shape).to(parameter) * 0.1)


def eager_experts(model: Any) -> None:
    """Mixtures of experts by plain matrix products: the grouped ones know no float64."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")


def _almost_certain(model: nn.Module) -> None:
    """Dropout that drops nothing. At exactly 0 it would be skipped, and give back the very tensor it was given."""
    for module in model.modules():
        holders = [module, *([module.config] if isinstance(vars(module).get("config"), PreTrainedConfig) else [])]
        for holder in holders:
            for name, value in list(vars(holder).items()):
                if isinstance(value, float) and value > 0 and name.endswith(RANDOM):
                    setattr(holder, name, _NEVER)
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            module.p = _NEVER
