"""What can be refused before any process starts: everything that needs neither text nor model nor device."""

from __future__ import annotations

from fullbore.config.run import RunConfig
from fullbore.errors import ConfigError
from fullbore.plan.schedule import layout_of, schedule_of

__all__ = ["check_before_start"]


def check_before_start(config: RunConfig) -> None:
    """Build the schedule and the layout once, for their errors.

    Raises:
        ConfigError, RecipeError, ScheduleError: says what would be valid.
    """
    layout_of(config)
    schedule_of(config)
    if config.train.checkpoint_every:
        raise ConfigError(
            f"checkpoints are not built yet: leave train.checkpoint_every at 0 (given {config.train.checkpoint_every})"
        )
