"""The options that say which run is meant, as `train`, `verify` and `profile` take them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fullbore.cli.argument_types import PATH_TYPE, is_there
from fullbore.config.load import load_run
from fullbore.config.run import RunConfig
from fullbore.errors import ConfigError
from fullbore.plan.apply import with_recipe
from fullbore.plan.recipe_file import read_recipe
from fullbore.plan.schedule import is_file, is_same
from fullbore.shown import shown

__all__ = ["TORCH", "import_from_here", "preload", "read_config", "run_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

TORCH = ("torch", "torch.distributed.device_mesh")
"""All that workers without a Hugging Face model need."""

_TRANSFORMERS = ("transformers", "transformers.models.llama.modeling_llama")


def preload(config: RunConfig) -> tuple[str, ...]:
    """What the workers of this run will need and what takes long to import: imported once, inherited by all ranks."""
    return TORCH if config.model.factory is not None else (*TORCH, *_TRANSFORMERS)


def run_options(command: _Command) -> _Command:
    """``[RUN.toml] [--recipe FILE] [--set section.key=value]...``"""
    for option in (
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="SECTION.KEY=VALUE",
            help="Override a key of the file.",
        ),
        click.option("--recipe", type=PATH_TYPE, metavar="FILE", help="Run exactly this recipe."),
        click.argument("run", required=False, type=PATH_TYPE, metavar="[RUN.toml]"),
    ):
        command = option(command)
    return command


def import_from_here() -> None:
    """Let ``model.factory`` name a module of the current folder, as `python -m` does; workers inherit the path."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def read_config(run: Path | None, *, recipe: Path | None, overrides: tuple[str, ...]) -> RunConfig:
    """The configuration these options mean. Raises InputError before any process starts."""
    import_from_here()
    config = load_run(run, overrides=overrides)
    if recipe is None:
        return config
    held = read_recipe(recipe).recipe
    if is_file(held.schedule) and not is_there(held.schedule):
        raise ConfigError(
            f"the recipe {recipe} takes its order from {held.schedule}, which is not there; write into the recipe, as "
            "its schedule, where that file is"
        )
    fixed = with_recipe(config, held)
    for override in overrides:
        name = ".".join(part.strip() for part in override.partition("=")[0].split("."))
        asked, has = _said(config, name), _said(fixed, name)
        # a schedule's file may be spelled in more ways than one
        if not (is_same(asked, has) if name == "pipeline.schedule" else asked == has):
            raise ConfigError(
                f"--set {shown(override)} contradicts the recipe {recipe}, which has "
                f"{f'no {name}' if has is None else f'{name} = {has!r}'}; leave out one of them"
            )
    return fixed


def _said(config: RunConfig, name: str) -> Any:
    """What a configuration says under ``section.key``, or inside of a table; None where it says nothing."""
    section, key, *inner = name.split(".")
    value = getattr(getattr(config, section), key)
    for part in inner:
        value = value.get(part) if isinstance(value, dict) else None
    return value
