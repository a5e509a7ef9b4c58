"""The options that say which run is meant, as `train`, `verify` and `profile` take them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fullbore.config.load import load_run
from fullbore.config.run import RunConfig
from fullbore.plan.apply import with_recipe
from fullbore.plan.recipe_file import read_recipe

__all__ = ["PRELOAD", "import_from_here", "read_config", "run_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

PRELOAD = ("torch", "torch.distributed.device_mesh", "transformers", "transformers.models.llama.modeling_llama")
"""What worker processes need and what takes long to import; imported once and inherited by all ranks."""


def run_options(command: _Command) -> _Command:
    """``[RUN.toml] [--recipe FILE] [--set section.key=value]...``"""
    for option in (
        click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key."),
        click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Run exactly this recipe."),
        click.argument("run", required=False, type=click.Path(path_type=Path), metavar="[RUN.toml]"),
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
    return config if recipe is None else with_recipe(config, read_recipe(recipe).recipe)
