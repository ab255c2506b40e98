"""Recipes from TOML, and back to JSON."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from waltzrl.config.data import MEMORY
from waltzrl.config.training import Recipe
from waltzrl.config.validation import validated, with_overrides
from waltzrl.data.jsonl import read_text
from waltzrl.errors import RecipeError
from waltzrl.telemetry.files import Json


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: a TOML file.
        overrides: `key=value`, later ones win; a stage goes by its name, `stages.joint.steps=100`.

    Raises:
        RecipeError: the file or an override is not TOML, a key is unknown or missing, or a value
            is of the wrong type or impossible.
    """
    try:
        table: dict[str, object] = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not TOML: {error}") from None
    return validated(Recipe, with_overrides(table, overrides), str(path))


def with_memory_prompts(recipe: Recipe, memory: str) -> Recipe:
    """Let a recipe learn from what users asked, before all else; a limit then spares that.

    Args:
        recipe: any.
        memory: `memory:<url>`, or the URL alone.
    """
    name = MEMORY + memory.removeprefix(MEMORY)
    prompts = (name, *(other for other in recipe.data.prompts if other != name))
    return replace(recipe, data=replace(recipe.data, prompts=prompts))


def recipe_json(recipe: Recipe) -> dict[str, Json]:
    """Return the recipe with every default spelt out."""
    resolved: dict[str, Json] = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    return resolved
