"""The recipe that a run directory belongs to: written at the start, compared when it goes on."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from waltzrl.agents import load_wording
from waltzrl.build.datasets import forget_remembered
from waltzrl.config.training import Recipe, recipe_json
from waltzrl.config.validation import validated
from waltzrl.errors import RecipeError
from waltzrl.telemetry import RunDirectory
from waltzrl.telemetry.files import Json
from waltzrl.training.judging import forget_answers

RECIPE, WORDING = "recipe.json", "wording.json"
BASE = "base"
"""Folder inside a run of a base that was made from scratch."""
EXPLANATIONS = "explanations.jsonl"
"""In a run: what a teacher wrote, as rows with a question, a solution and a trace."""


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
    return validated(Recipe, table, str(path))


def write_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Write recipe and prompts into the run, or check that its checkpoints are of the same ones.

    What samples the rollouts may be another: servers go, and policies are the same on all. So may
    what starts the processes, the cap and the prices.

    Raises:
        RecipeError: the checkpoints are of another recipe, or of another wording.
    """
    resolved: dict[str, Json] = recipe_json(recipe)
    wording: dict[str, Json] = asdict(load_wording(recipe.agents.wording))
    if any(run.path.glob("**/checkpoints/step-*")):
        begun = read_run_recipe(run.path)
        now = recipe.compute
        free = replace(begun.compute, rollouts=now.rollouts, engine=now.engine, ray=now.ray)
        same = replace(begun, compute=free, budget=recipe.budget, prices=recipe.prices)
        _require_same(run.path, "recipe", resolved, recipe_json(same))
        if (run.path / WORDING).exists():  # version 0.1 wrote none
            _require_same(run.path, "wording", wording, _read_json(run.path / WORDING))
        return
    # Nothing was learnt yet: what the run made or kept may be of another recipe.
    shutil.rmtree(run.path / BASE, ignore_errors=True)
    forget_remembered(run.path)
    forget_answers(run.path)
    (run.path / EXPLANATIONS).unlink(missing_ok=True)
    run.write_json(WORDING, wording)
    run.write_json(RECIPE, resolved)


def _require_same(
    folder: Path, what: str, now: Mapping[str, object], before: Mapping[str, object]
) -> None:
    if differing := [key for key, value in now.items() if before.get(key) != value]:
        raise RecipeError(
            f"{folder} was begun with another {what} (other {', '.join(differing)}); "
            f"choose another run directory, or go back to that {what}"
        )


def _read_json(path: Path) -> dict[str, object]:
    try:
        value: dict[str, object] = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecipeError(f"{path}: damaged: {error}") from None
    return value
