"""The schedules that the runtime runs, `auto` among them."""

from __future__ import annotations

from fullbore.synthesis.catalogue import CATALOGUE

RUNNABLE = tuple(name for name, entry in CATALOGUE.items() if entry.runnable)

TWO_STREAMS = tuple(
    name for name in RUNNABLE if CATALOGUE[name].place(CATALOGUE[name].sizes(4, num_microbatches=8)).num_streams > 1
)
"""Those of them that hold the model twice."""
