"""What can be refused before any process starts: everything that needs neither text nor model nor device."""

from __future__ import annotations

from fullbore.config.run import RunConfig
from fullbore.errors import ConfigError
from fullbore.ir.recipe import Layout
from fullbore.plan.schedule import schedule_of

__all__ = ["check_before_start"]


def check_before_start(config: RunConfig) -> None:
    """Build the schedule and the layout once, for their errors.

    Raises:
        ConfigError, RecipeError, ScheduleError: says what would be valid.
    """
    mesh, pipeline = config.mesh, config.pipeline
    Layout(pipeline.stages, pipeline.chunks, mesh.tensor, mesh.data, mesh.context, mesh.expert)
    schedule_of(config)
    if config.train.checkpoint_every:
        raise ConfigError(
            f"checkpoints are not built yet: leave train.checkpoint_every at 0 (given {config.train.checkpoint_every})"
        )
