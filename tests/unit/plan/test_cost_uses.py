"""A run says why it measures its layers, also where a recipe has cut them already."""

from __future__ import annotations

import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.plan.cost_uses import CostUse, cost_uses, describe_uses
from fullbore.plan.schedule import asked_schedule

TRAINING = (CostUse.PREDICTION, CostUse.SLOW_STAGE)


@pytest.mark.parametrize(
    ("partition", "schedule", "besides", "said"),
    [
        ("profile", "1f1b", TRAINING, "to cut them, to predict a step and to find a slow stage"),
        ((5, 5), "1f1b", TRAINING, "to predict a step and to find a slow stage (their cut is given)"),
        ("equal", "auto", (), "to order their actions"),
        ((5, 5), "auto", (), "to order their actions (their cut is given)"),
        ("parameters", "gpipe", (), "to cut them"),
        ((5, 5), "1f1b", (), None),
        ("equal", "1f1b", (), None),
    ],
)
def test_what_costs_are_for(
    partition: str | tuple[int, ...], schedule: str, besides: tuple[CostUse, ...], said: str | None
) -> None:
    pipeline = PipelineConfig(partition=partition, schedule=schedule)  # type: ignore[arg-type]
    config = RunConfig(pipeline=pipeline)
    uses = cost_uses(config, asked=asked_schedule(config), besides=besides)
    assert (describe_uses(uses, config=config) if uses else None) == said
