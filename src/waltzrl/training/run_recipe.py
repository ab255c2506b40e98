"""The recipe that a run directory belongs to: written at the start, compared when it goes on."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from waltzrl.agents import load_wording
from waltzrl.errors import RecipeError
from waltzrl.foundation.files import Json
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.validation import validate_table
from waltzrl.training.data import forget_remembered
from waltzrl.training.judging import forget_answers
from waltzrl.training.recipe import Recipe, recipe_json

RECIPE, WORDING = "recipe.json", "wording.json"
BASE = "base"
"""Folder inside a run of a base that was made from scratch."""
EXPLANATIONS = "explanations.jsonl"
"""File inside a run of what a teacher wrote, as rows with a question, a solution and a trace."""
FREE = {"budget", "prices", "targets"}
FREE_COMPUTE = {"rollouts", "engine", "ray"}
"""Settings that a run may go on with other values of."""

Table = Mapping[str, object]


def read_run_recipe(folder: Path) -> Recipe:
    """Read the recipe that a run was started with.

    Raises:
        RecipeError: there is none, or it is damaged.
    """
    path = folder / RECIPE
    try:
        table = _read_json(path)
    except OSError:
        raise RecipeError(f"{folder} is no training run: it has no {RECIPE}") from None
    return validate_table(Recipe, table, str(path))


def write_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Write recipe and prompts into the run, or check that its checkpoints are of the same ones.

    What samples the rollouts may be another: servers go, and policies are the same on all. So may
    what starts the processes, the cap, the prices and the targets.

    Raises:
        RecipeError: the checkpoints are of another recipe, or of another wording.
    """
    resolved: dict[str, Json] = recipe_json(recipe)
    wording: dict[str, Json] = asdict(load_wording(recipe.agents.wording))
    if any(run.path.glob("**/checkpoints/step-*")):
        # As tables: what is free here and what is not need not be a recipe together.
        begun = recipe_json(read_run_recipe(run.path))
        _require_same_recipe(run.path, "recipe", _without_free(resolved), _without_free(begun))
        _require_same_recipe(run.path, "wording", wording, _read_json(run.path / WORDING))
        return
    # Nothing was learnt yet: what the run made or kept may be of another recipe.
    shutil.rmtree(run.path / BASE, ignore_errors=True)
    forget_remembered(run.path)
    forget_answers(run.path)
    (run.path / EXPLANATIONS).unlink(missing_ok=True)
    run.write_json(WORDING, wording)
    run.write_json(RECIPE, resolved)


def _without_free(recipe: Table) -> Table:
    """Leave out what may change while a run goes on."""
    compute = recipe["compute"]
    assert isinstance(compute, Mapping)
    kept = {key: value for key, value in compute.items() if key not in FREE_COMPUTE}
    return {key: value for key, value in recipe.items() if key not in FREE} | {"compute": kept}


def _require_same_recipe(folder: Path, what: str, now: Table, before: Table) -> None:
    if differing := list(_yield_differing_keys(now, before)):
        raise RecipeError(
            f"{folder} was begun with another {what} (other {', '.join(differing)}); "
            f"choose another run directory, or go back to that {what}"
        )


def _yield_differing_keys(now: Table, before: Table, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values are others now."""
    for key, value in now.items():
        other = before.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _yield_differing_keys(value, other, f"{prefix}{key}.")
        elif value != other:
            yield prefix + key


def _read_json(path: Path) -> dict[str, object]:
    try:
        value: dict[str, object] = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecipeError(f"{path}: damaged: {error}") from None
    return value
