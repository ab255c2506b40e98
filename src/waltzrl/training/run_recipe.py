"""The recipe and the data of a run directory: written at the start, compared when it goes on."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from waltzrl.agents import load_wording
from waltzrl.errors import RecipeError
from waltzrl.foundation.files import Json, write_json
from waltzrl.foundation.journal import METRICS
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.validation import validate_table
from waltzrl.training.data import forget_remembered
from waltzrl.training.judging import forget_answers
from waltzrl.training.recipe import Recipe, recipe_json

RECIPE, WORDING = "recipe.json", "wording.json"
DATA = "data.json"
"""File inside a run with a digest of each kind of data that it learns from."""
BASE = "base"
"""Folder inside a run of a base that was made from scratch."""
EXPLANATIONS = "explanations.jsonl"
"""File inside a run of what a teacher wrote, as rows with a question, a solution and a trace."""
WRITTEN = (BASE, EXPLANATIONS, METRICS)
"""What a run writes or deletes, and others may have under the same name."""
FREE = (
    *("budget", "prices", "targets", "wandb_project", "checkpointing.copies"),
    *("compute.rollouts", "compute.engine", "compute.ray"),
)
"""Settings that a run may go on with other values of."""

Table = Mapping[str, object]


def read_run_recipe(folder: Path) -> Recipe:
    """Read the recipe that a run was started with.

    Raises:
        RecipeError: there is none, or it is damaged.
    """
    try:
        table = _parse(str(folder), RECIPE, lambda name: (folder / name).read_bytes())
    except NotADirectoryError:
        raise _make_no_run_error(str(folder), RECIPE) from None
    return validate_table(Recipe, table, str(folder / RECIPE))


def write_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Write recipe and prompts into the run, or check that its checkpoints are of the same ones.

    Raises:
        RecipeError: the checkpoints are of another recipe, or of another wording; or the folder has
            something of the name of what a run writes, and no recipe.
    """
    if is_begun(run.path):
        require_same(recipe, str(run.path), lambda name: (run.path / name).read_bytes())
        return
    if (run.path / RECIPE).exists():
        # Nothing was learnt yet: what the run made or kept may be of another recipe.
        shutil.rmtree(run.path / BASE, ignore_errors=True)
        forget_remembered(run.path)
        forget_answers(run.path)
        (run.path / EXPLANATIONS).unlink(missing_ok=True)
    require_no_foreign(run.path)
    write_json(run.path / WORDING, _wording_json(recipe))
    write_json(run.path / RECIPE, recipe_json(recipe))


def require_no_foreign(folder: Path) -> None:
    """Check that a folder is a run, or has nothing of the name of what a run writes.

    Raises:
        RecipeError: it has something of such a name, and no recipe.
    """
    foreign = [name for name in WRITTEN if (folder / name).exists()]
    if foreign and not (folder / RECIPE).exists():
        raise RecipeError(
            f"{folder} is no training run, and has a {foreign[0]} that a run would replace; "
            "choose another run directory"
        )


def write_data(run: RunDirectory, data: Mapping[str, Iterable[object]]) -> None:
    """Write digests of the data into the run, or check that its checkpoints are of the same data.

    A step takes its examples by their places: with others, some would be left out or come again.

    Args:
        run: whose recipe was written.
        data: records by the key that names them.

    Raises:
        RecipeError: the checkpoints are of other data.
    """
    digests = {key: _digest_records(records) for key, records in data.items()}
    if not is_begun(run.path):
        write_json(run.path / DATA, digests)
        return
    if not (run.path / DATA).exists():  # of a version that wrote none
        return
    begun = _parse(str(run.path), DATA, lambda name: (run.path / name).read_bytes())
    differing = [key for key, digest in digests.items() if begun.get(key, digest) != digest]
    if differing:
        raise RecipeError(
            f"{run.path}: what {' and '.join(differing)} names has changed since the run was begun;"
            " choose another run directory, or go back to those files"
        )


def _digest_records(records: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(msgspec.to_builtins(record)).encode() + b"\n")
    return digest.hexdigest()


def is_begun(folder: Path) -> bool:
    """Return whether a run has learnt anything that it kept."""
    return any(folder.glob("**/checkpoints/step-*"))


def require_same(
    recipe: Recipe, place: str, read: Callable[[str], bytes], other: str = "run directory"
) -> None:
    """Check that a run was begun with this recipe and these prompts.

    What samples the rollouts may be another: servers go, and policies are the same on all. So may
    what starts the processes, the cap, the prices, the targets, and where else the run is shown
    and kept.

    Args:
        recipe: of now.
        place: where the run is, for messages.
        read: returns the content of a file of the run.
        other: what to choose another one of.

    Raises:
        RecipeError: it was begun with others.
    """
    # As tables: what is free here and what is not need not be a recipe together.
    begun = recipe_json(validate_table(Recipe, _parse(place, RECIPE, read), f"{place}/{RECIPE}"))
    for what, now, before in (
        ("recipe", recipe_json(recipe), begun),
        ("wording", _wording_json(recipe), _parse(place, WORDING, read)),
    ):
        keys = _yield_differing_keys(now, before)
        # The dots let a free table free its keys, and no other key that begins with its name.
        differing = [key for key in keys if not f"{key}.".startswith(tuple(f"{f}." for f in FREE))]
        if differing:
            raise RecipeError(
                f"{place} was begun with another {what} (other {', '.join(differing)}); "
                f"choose another {other}, or go back to that {what}"
            )


def _wording_json(recipe: Recipe) -> dict[str, Json]:
    return asdict(load_wording(recipe.agents.wording))


def _yield_differing_keys(now: Table, before: Table, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values are others now."""
    for key, value in now.items():
        other = before.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _yield_differing_keys(value, other, f"{prefix}{key}.")
        elif value != other:
            yield prefix + key


def _parse(place: str, name: str, read: Callable[[str], bytes]) -> dict[str, object]:
    try:
        value: dict[str, object] = json.loads(read(name))
    except FileNotFoundError:
        raise _make_no_run_error(place, name) from None
    except ValueError as error:
        raise RecipeError(f"{place}/{name}: damaged: {error}") from None
    return value


def _make_no_run_error(place: str, name: str) -> RecipeError:
    return RecipeError(f"{place} is no training run: it has no {name}; choose another folder")
