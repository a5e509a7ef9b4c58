"""What the costs of the layers are for: why a run measures its layers, also where a recipe has cut them already."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from fullbore.config.run import RunConfig
from fullbore.plan.schedule import AskedSchedule

__all__ = ["CostUse", "cost_uses", "describe_uses"]


class CostUse(StrEnum):
    """In the order in which a run comes to them. The value is what a person is told."""

    CUT = "to cut them"
    ORDER = "to order their actions"
    PREDICTION = "to predict a step"
    SLOW_STAGE = "to find a slow stage"


def cost_uses(config: RunConfig, *, asked: AskedSchedule, besides: Collection[CostUse]) -> tuple[CostUse, ...]:
    """What this run needs costs for; none: nothing has to be measured.

    Args:
        asked: the configuration's schedule.
        besides: what the command wants with them, whatever the configuration says.
    """
    wanted = set(besides)
    if config.pipeline.partition in ("profile", "parameters"):
        wanted.add(CostUse.CUT)
    if asked.follows_costs:
        wanted.add(CostUse.ORDER)
    return tuple(use for use in CostUse if use in wanted)


def describe_uses(uses: Collection[CostUse], *, config: RunConfig) -> str:
    """In a few words, with the cut that was there before, which is why somebody would ask."""
    *others, last = uses
    listed = f"{', '.join(others)} and {last}" if others else str(last)
    return f"{listed} (their cut is given)" if isinstance(config.pipeline.partition, tuple) else listed
