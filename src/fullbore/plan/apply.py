"""A recipe laid over a run configuration: what the recipe fixes replaces what the file says."""

from __future__ import annotations

import msgspec

from fullbore.config.run import RunConfig
from fullbore.ir.recipe import Recipe

__all__ = ["with_recipe"]


def with_recipe(config: RunConfig, recipe: Recipe) -> RunConfig:
    """The configuration that runs exactly this recipe. Text, model, optimizer and lengths stay as they are. So does
    the memory cap where the recipe names none, as for a schedule whose order does not depend on it.

    Raises:
        ConfigError: the result contradicts itself.
    """
    layout = recipe.layout
    batch = msgspec.structs.replace(
        config.batch,
        global_batch=recipe.global_batch,
        microbatch_size=recipe.microbatch_size,
        accumulation=recipe.accumulation,
    )
    pipeline = msgspec.structs.replace(
        config.pipeline,
        stages=layout.pipeline,
        chunks=layout.chunks,
        microbatches=recipe.microbatches,
        schedule=recipe.schedule,
        options=dict(recipe.schedule_options),
        memory_cap=config.pipeline.memory_cap if recipe.memory_cap is None else recipe.memory_cap,
        partition=recipe.layers_per_stage,
        recompute=recipe.recompute or "none",
        recompute_ahead=recipe.recompute_ahead,
    )
    mesh = msgspec.structs.replace(
        config.mesh, tensor=layout.tensor, data=layout.data, context=layout.context, expert=layout.expert
    )
    return msgspec.structs.replace(config, batch=batch, pipeline=pipeline, mesh=mesh)
