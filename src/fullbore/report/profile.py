"""Layer costs as a table for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fullbore.config.layer_names import name_ranges
from fullbore.costs.layer import LayerCost

__all__ = ["render_profile"]


def render_profile(layers: Sequence[LayerCost], *, description: str) -> str:
    """One line a layer: times in ms, sizes in MiB, and its share of all time; below, which have the same times."""
    total = sum(layer.time_ns for layer in layers) or 1
    wide = max(len("layer"), *(len(layer.name) for layer in layers))
    lines = [
        description,
        "",
        f"{'layer':<{wide}}  forward  backward-input  backward-weight  share  parameters  kept MiB  output MiB",
    ]
    for layer in layers:
        lines.append(
            f"{layer.name:<{wide}}  {layer.forward_ns / 1e6:>4.2f} ms  {layer.backward_input_ns / 1e6:>11.2f} ms"
            f"  {layer.backward_weight_ns / 1e6:>12.2f} ms  {layer.time_ns / total:>5.1%}  {layer.parameters:>10,}"
            f"  {layer.activation_bytes / 2**20:>8.2f}  {layer.output_bytes / 2**20:>10.2f}"
        )
    names = [layer.name for layer in layers]
    alike = [name_ranges(group, layer_names=names) for group in _alike(layers)]
    if alike:
        lines += ["", f"alike, with the same sizes and times: {'; '.join(alike)}"]
    return "\n".join(lines) + "\n"


def _alike(layers: Sequence[LayerCost]) -> list[list[int]]:
    """Layers with the same sizes and times to the nanosecond: as a rule `fullbore.models.profile` measured them as one
    block."""
    groups: dict[LayerCost, list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault(replace(layer, name="any"), []).append(index)
    return [group for cost, group in groups.items() if len(group) > 1 and cost.time_ns]
