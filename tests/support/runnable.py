"""The registered schedules that the runtime runs. Those with split backwards join when its engine runs I and W."""

from __future__ import annotations

from fullbore.ir.action import Kind
from fullbore.runtime.eager import EagerEngine
from fullbore.schedules.registry import REGISTRY

SPLIT = {Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
RUNNABLE = tuple(
    name
    for name, entry in REGISTRY.items()
    if entry.runnable and (not entry.splits_backward or EagerEngine.kinds >= SPLIT)
)
