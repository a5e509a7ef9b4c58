"""What can be refused before any process starts: everything that needs neither text nor model nor device."""

from __future__ import annotations

from pathlib import Path

from fullbore.config.run import RunConfig
from fullbore.costs.emulation import read_emulation
from fullbore.costs.layer import read_costs
from fullbore.data.files import need_files
from fullbore.errors import ConfigError, PartitionError
from fullbore.models.hugging_face.folder import need_config
from fullbore.partition.equal import equal
from fullbore.plan.known_layers import known_layers
from fullbore.plan.schedule import AskedSchedule, asked_schedule

__all__ = ["check_before_start", "check_emulation", "check_inputs"]


def check_before_start(config: RunConfig) -> None:
    """Build the schedule and the layout once, for their errors.

    Raises:
        ConfigError, RecipeError, ScheduleError: says what would be valid.
    """
    asked = asked_schedule(config)
    asked.layout(config.mesh)
    asked.make()
    if config.train.checkpoint_every:
        raise ConfigError(
            f"checkpoints are not built yet: leave train.checkpoint_every at 0 (given {config.train.checkpoint_every})"
        )


def check_inputs(config: RunConfig) -> None:
    """Look for the files of text and model, and hold the stages against the layers where a configuration counts them.

    Raises:
        DataError, ModelError: a file that is not there.
        PartitionError: a stage would have no layer, or a list of layers for each stage does not add up.
    """
    need_files(config.data)
    if config.model.hf is not None:
        need_config(Path(config.model.hf))
    layers = known_layers(config.model)
    if layers is not None:
        _need_layers(config, asked_schedule(config), layers=layers)


def check_emulation(config: RunConfig, costs: Path) -> None:
    """Read the costs of an emulated run once, for their errors.

    Raises:
        CostsError: the file cannot be used, or its links and faults do not fit the pipeline.
        PartitionError: as `check_inputs`, for the layers of the file.
    """
    asked = asked_schedule(config)
    _need_layers(config, asked, layers=len(read_costs(costs)))
    stages = asked.placement.stages_per_stream
    read_emulation(costs).require(num_ranks=config.pipeline.stages, num_stages=stages)


def _need_layers(config: RunConfig, asked: AskedSchedule, *, layers: int) -> None:
    asked.require_layers(layers)
    given = config.pipeline.partition
    if isinstance(given, tuple) and sum(given) != layers:
        even = list(equal(layers, num_stages=asked.placement.stages_per_stream))
        raise PartitionError(
            f"pipeline.partition must add up to the model's {layers} layers, embed and head among them (given "
            f"{list(given)}, which add up to {sum(given)}); an equal split is {even}"
        )
