"""The registered schedules that the runtime runs."""

from __future__ import annotations

from fullbore.schedules.registry import REGISTRY

RUNNABLE = tuple(name for name, entry in REGISTRY.items() if entry.runnable)
