"""What messages about a schedule call the settings that it has to fit, and how they say to change them.

A schedule is asked for by a run file, whose keys have names, or by `fullbore partition`, whose options have others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["OPTIONS", "RUN_FILE", "SettingWords"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingWords:
    """The words of one who asks. Each of the sentences below ends a message."""

    sizes: Mapping[str, str]
    """What ``stages``, ``chunks`` and ``microbatches`` are called."""

    form: str
    """With ``{name}`` and ``{value}``: how a size is written."""

    give: str
    """The verb for it."""

    layers: str
    """Behind a number of layers: what is counted."""

    no_recompute: str
    """Behind "has recomputations (R) and": a file has them, and nothing says which layers they are of."""

    partial_recompute: str
    """Behind "a schedule has one before each backward, or none;"."""

    memory_cap: str
    """The cap that a schedule is above."""

    above_cap: str
    """What to do then."""

    def size(self, size: str, *, value: int) -> str:
        """As one would write it."""
        return self.form.format(name=self.sizes[size], value=value)


RUN_FILE = SettingWords(
    sizes=MappingProxyType({size: f"pipeline.{size}" for size in ("stages", "chunks", "microbatches")}),
    form="{name}={value}",
    give="set",
    layers=", embed and head among them",
    no_recompute=('pipeline.recompute names no layer; set it to "full" or a list of layer names, or leave out the Rs'),
    partial_recompute="or set pipeline.recompute_ahead=true, which sets them anew",
    memory_cap="pipeline.memory_cap={cap:g}",
    above_cap="raise it, or use another schedule",
)

OPTIONS = SettingWords(
    sizes=MappingProxyType({"stages": "-p", "chunks": "-v", "microbatches": "-m"}),
    form="{name} {value}",
    give="give",
    layers="",
    no_recompute="the costs are of no run that recomputes; leave out the Rs, or give the folder of one that does",
    partial_recompute="give one of these, or --schedule NAME",
    memory_cap="the memory cap of the run, {cap:g}",
    above_cap="give another --schedule, or a smaller -m",
)
