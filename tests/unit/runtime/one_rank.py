"""A pipeline of one rank, a loss that fails in it, and whether it has left its modules as they were."""

from __future__ import annotations

import torch

from fullbore.runtime.device import CpuDevice
from fullbore.runtime.pipeline import Pipeline
from tests.support.ranks import SQUARED_ERROR


def made(model: torch.nn.Module, **given: object) -> Pipeline:
    """A pipeline of one rank for a chain model's batches, unless said otherwise."""
    arguments = {"num_microbatches": 4, "objective": SQUARED_ERROR, "device": CpuDevice(), **given}
    return Pipeline(model, **arguments)  # type: ignore[arg-type]


def failing(output: torch.Tensor, microbatch: object) -> torch.Tensor:
    raise ZeroDivisionError


def untouched(model: torch.nn.Module) -> bool:
    """Nothing of a pipeline's is left on it: no wrapped forward, no hook on a weight."""
    wrapped = [module for module in model.modules() if "forward" in vars(module)]
    return not wrapped and not any(weight._post_accumulate_grad_hooks for weight in model.parameters())
