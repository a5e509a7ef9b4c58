"""The schedules that the runtime runs, `auto` among them."""

from __future__ import annotations

from fullbore.synthesis.catalogue import CATALOGUE

RUNNABLE = tuple(name for name, entry in CATALOGUE.items() if entry.runnable)
