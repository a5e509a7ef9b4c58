"""Recipes as JSON files: what `partition -o` writes and ``--recipe`` reads.

The document is the recipe's fields; unknown keys and values of another type are errors. ``stage_costs`` may stand
beside them: what each stage takes by the costs the recipe was made from, so that a schedule can be drawn with uneven
stages.

Where the schedule is a file, a recipe that is written names it by its whole path, so that it says the same wherever it
is read. A path that a person writes into one is, as in a run file, taken from the folder that the command runs in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fullbore.config.convert import convert
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError, RecipeError
from fullbore.ir.recipe import Layout, Recipe
from fullbore.json_file import read_json, write_json
from fullbore.nearest import nearest
from fullbore.plan.schedule import is_file
from fullbore.shown import shown

__all__ = ["RecipeFile", "read_recipe", "recipe_document", "write_recipe"]

_T = TypeVar("_T", Layout, Recipe, StageCost)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe as read, with what its stages take where the file says it (nanoseconds)."""

    recipe: Recipe
    stage_costs: tuple[StageCost, ...] | None


def recipe_document(recipe: Recipe, *, stage_costs: Sequence[StageCost] | None = None) -> dict[str, Any]:
    """The JSON document of a recipe. Streams are named where there are two, a memory cap where there is one."""
    document = asdict(recipe)
    if recipe.layout.streams == 1:
        del document["layout"]["streams"]
    if recipe.memory_cap is None:
        del document["memory_cap"]
    if stage_costs is not None:
        document["stage_costs"] = [asdict(cost) for cost in stage_costs]
    return document


def write_recipe(path: Path, recipe: Recipe, *, stage_costs: Sequence[StageCost] | None = None) -> None:
    """Raises `RecipeError` where the file cannot be written."""
    if is_file(recipe.schedule):
        recipe = replace(recipe, schedule=str(Path(recipe.schedule).absolute()))
    write_json(path, recipe_document(recipe, stage_costs=stage_costs), what="recipe", error=RecipeError)


def read_recipe(path: Path) -> RecipeFile:
    """The inverse of `write_recipe`.

    Raises:
        RecipeError: unreadable, not JSON, an unknown or missing key, a value of another type, or a recipe that
            contradicts itself.
    """
    document = read_json(path, what="recipe", error=RecipeError)
    if not isinstance(document, dict):
        raise RecipeError(f"a recipe is a JSON object ({path} holds a {type(document).__name__})")
    costs = document.pop("stage_costs", None)
    layout = _made(Layout, document.pop("layout", {}), name="layout", where=str(path))
    recipe = _made(Recipe, document, name=None, where=str(path), layout=layout)
    if costs is None:
        return RecipeFile(recipe, None)
    if not isinstance(costs, list) or len(costs) != recipe.layout.num_stages:
        given = len(costs) if isinstance(costs, list) else shown(repr(costs))
        raise RecipeError(
            f"stage_costs needs one entry for each of the {recipe.layout.num_stages} stages ({path}: {given})"
        )
    stages = (_made(StageCost, cost, name=f"stage_costs[{stage}]", where=str(path)) for stage, cost in enumerate(costs))
    return RecipeFile(recipe, tuple(stages))


def _made(kind: type[_T], entry: Any, *, name: str | None, where: str, **parts: Any) -> _T:
    """One of the dataclasses from its JSON object.

    Args:
        name: the key it stands under; None for the document itself.
        parts: fields that are made already.
    """
    if not isinstance(entry, dict):
        raise RecipeError(f"the {name} of a recipe is a JSON object ({where}: {shown(repr(entry))})")
    known = {field.name: field for field in fields(kind)}
    for key in entry:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            raise RecipeError(f"unknown key {key!r} ({where}{'' if name is None else f', {name}'}); {hint}")
    needed = [key for key, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    missing = [key for key in needed if key not in entry and key not in parts]
    if missing:
        raise RecipeError(f"{name or 'a recipe'} needs {', '.join(needed)} ({where} lacks {', '.join(missing)})")
    types, under = get_type_hints(kind), "" if name is None else f"{name}."
    values = {
        key: convert(value, kind=types[key], name=f"{under}{key}", where=where, error=RecipeError)
        for key, value in entry.items()
    }
    try:
        return kind(**values, **parts)
    except (RecipeError, CostsError) as error:
        raise RecipeError(f"the recipe {where} cannot be used: {error}") from error
