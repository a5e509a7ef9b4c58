"""Holds a pipeline plan against the model: with every planned module passed over, the base model must be the identity.

A later stage enters through ``inputs_embeds`` with its foreign modules passed over. That is exact only if the
base model's own forward does nothing else to the values: no scale, no position embedding, no reshaping, each
block called once and in order. All of it shows in one forward without weights, so it is run for every model
before anything is split. (granite has a plan and scales ``inputs_embeds`` in its forward: each later stage
would scale again, and only a configuration with a multiplier other than 1 would show it.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fullbore.errors import ModelError
from fullbore.models.pipeline_plan import PipelinePlan

__all__ = ["check_pass_through"]


def check_pass_through(shell: Any, *, plan: PipelinePlan, hidden_size: int, dtype: torch.dtype) -> None:
    """Run ``shell``, a CPU copy of the model with every planned module passed over, on a few numbers.

    Raises:
        ModelError: naming the family and what its forward does besides calling its layers.
    """
    family = shell.config.model_type
    called: list[str] = []
    expected: list[str] = []
    for layer in plan.layers(shell)[1:]:
        for name, module in layer.parts:
            if name.startswith(f"{plan.base}."):
                expected.append(name)
                module.register_forward_hook(_note(called, name))
    values = torch.linspace(-1.0, 1.0, 3 * hidden_size, dtype=torch.float64).to(dtype).reshape(1, 3, hidden_size)
    base = shell.get_submodule(plan.base).eval()
    try:
        with torch.no_grad():
            result = base(inputs_embeds=values, use_cache=False).last_hidden_state
    except Exception as error:
        raise ModelError(
            f"{family} cannot be split: its forward needs more from a block than the values it passes on "
            f"({type(error).__name__}: {error})"
        ) from error
    if called != expected:
        raise ModelError(
            f"{family} cannot be split: its forward does not call each block once and in order "
            f"(called {', '.join(called) or 'nothing'})"
        )
    if not isinstance(result, torch.Tensor) or result.shape != values.shape or not torch.equal(result, values):
        raise ModelError(
            f"{family} cannot be split exactly: its forward changes the embeddings outside of any module (a scale or "
            "a position embedding), and each later stage would change them again; where a configuration value "
            "does it (embedding_multiplier, scale_emb), 1 is exact"
        )


def _note(called: list[str], name: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        called.append(name)

    return hook
