"""Recipes as JSON files: what `partition -o` writes and ``--recipe`` reads.

The document is the recipe's fields; unknown keys are errors. ``stage_costs`` may stand beside them: what each stage
takes by the costs the recipe was made from, so that a schedule can be drawn with uneven stages.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError, RecipeError
from fullbore.ir.recipe import Layout, Recipe

__all__ = ["RecipeFile", "read_recipe", "recipe_document", "write_recipe"]


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe as read, with what its stages take where the file says it (nanoseconds)."""

    recipe: Recipe
    stage_costs: tuple[StageCost, ...] | None


def recipe_document(recipe: Recipe, *, stage_costs: Sequence[StageCost] | None = None) -> dict[str, Any]:
    """The JSON document of a recipe. Streams are named where there are two."""
    document = asdict(recipe)
    if recipe.layout.streams == 1:
        del document["layout"]["streams"]
    if stage_costs is not None:
        document["stage_costs"] = [asdict(cost) for cost in stage_costs]
    return document


def write_recipe(path: Path, recipe: Recipe, *, stage_costs: Sequence[StageCost] | None = None) -> None:
    """Raises `RecipeError` where the file cannot be written."""
    text = json.dumps(recipe_document(recipe, stage_costs=stage_costs), indent=2) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot write the recipe {path}: {error.strerror}") from error


def read_recipe(path: Path) -> RecipeFile:
    """The inverse of `write_recipe`.

    Raises:
        RecipeError: unreadable, not JSON, an unknown or missing key, or a recipe that contradicts itself.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RecipeError(f"a recipe is a JSON object ({path} holds a {type(document).__name__})")
    costs = document.pop("stage_costs", None)
    _check_keys(document, Recipe, where=str(path))
    layout = document.get("layout", {})
    if not isinstance(layout, dict):
        raise RecipeError(f"the layout of a recipe is a JSON object ({path}: {layout!r})")
    _check_keys(layout, Layout, where=f"{path}, layout")
    try:
        recipe = Recipe(**{**document, **_tuples(document), "layout": Layout(**layout)})
        stage_costs = None if costs is None else tuple(StageCost(**cost) for cost in costs)
    except (TypeError, RecipeError, CostsError) as error:
        raise RecipeError(f"the recipe {path} cannot be used: {error}") from error
    if stage_costs is not None and len(stage_costs) != recipe.layout.num_stages:
        raise RecipeError(
            f"stage_costs needs one entry for each of the {recipe.layout.num_stages} stages "
            f"({path}: {len(stage_costs)})"
        )
    return RecipeFile(recipe, stage_costs)


def _tuples(document: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """JSON has lists, a frozen recipe tuples."""
    return {name: tuple(document[name]) for name in ("layers_per_stage", "recompute") if name in document}


def _check_keys(document: dict[str, Any], kind: type[Recipe] | type[Layout], *, where: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in document:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise RecipeError(f"unknown key {key!r} ({where}); {hint}")
