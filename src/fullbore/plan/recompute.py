"""Recomputation as a change of layer costs: the forward is paid again, in the backward or before it, and only the input
is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fullbore.config.layer_names import require_layers
from fullbore.costs.layer import LayerCost
from fullbore.costs.stage import StageCost
from fullbore.errors import ConfigError
from fullbore.ids import StageIndex
from fullbore.ir.schedule import Schedule
from fullbore.schedules.recompute_ahead import recompute_ahead

__all__ = ["ahead_in_stages", "recomputed_layers", "with_recompute"]


def recomputed_layers(choice: str | Sequence[str], *, layer_names: Sequence[str]) -> tuple[str, ...]:
    """The names behind ``pipeline.recompute``, in model order. "full" is every layer except ``embed`` and ``head``.

    Raises:
        ConfigError: "selective", which is not built yet, or a name that is no layer.
    """
    if choice == "none":
        return ()
    if choice == "full":
        return tuple(name for name in layer_names if name not in ("embed", "head"))
    if isinstance(choice, str):
        raise ConfigError(
            f'pipeline.recompute = "{choice}" is not built yet; use "none", "full" or a list of layer names'
        )
    require_layers(choice, layer_names=layer_names, setting="pipeline.recompute")
    return tuple(name for name in layer_names if name in choice)


def with_recompute(
    layers: Sequence[LayerCost], *, names: Collection[str], ahead: bool = False
) -> tuple[LayerCost, ...]:
    """The costs with the forward of the named layers run again in their backward, or with ``ahead`` in an R before it.

    What such a layer keeps is its input, the output of the layer before it; of the first layer, nothing that counts.
    """
    inputs = (0, *(layer.output_bytes for layer in layers[:-1]))
    return tuple(
        replace(
            layer,
            backward_input_ns=layer.backward_input_ns + (0 if ahead else layer.forward_ns),
            recompute_ns=layer.forward_ns if ahead else 0,
            activation_bytes=min(kept, layer.activation_bytes),
        )
        if layer.name in names
        else layer
        for layer, kept in zip(layers, inputs, strict=True)
    )


def ahead_in_stages(schedule: Schedule, *, costs: Sequence[StageCost]) -> Schedule:
    """The schedule with an R in every stage in which one takes time."""
    return recompute_ahead(schedule, stages=[StageIndex(s) for s, cost in enumerate(costs) if cost.recompute != 0])
