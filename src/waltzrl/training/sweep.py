"""The points of a sweep: one recipe with every combination of some values, each a run."""

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from pathlib import Path

from waltzrl.errors import DivergenceError, InputError, RecipeError, WaltzError
from waltzrl.foundation.files import write_bytes
from waltzrl.training.recipe import Recipe, load_recipe

DIVERGED = "diverged.txt"
"""File in the run directory of a point whose training diverged; it says where."""
UNFIT = re.compile(r"[^\w.=,+-]+")
"""The characters that a folder's name leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """A combination of values, and the recipe that has them."""

    name: str
    """The name, also of its run directory: what the combination sets, such as
    `kl_weight=0.02,seed=1`."""
    setting: str
    """The name without the seed: points of one setting are repetitions."""
    values: Mapping[str, object]
    """The values that the point sets, by their keys in the recipe."""
    recipe: Recipe


def sweep_points(path: Path, settings: Sequence[str], over: Sequence[str]) -> list[SweepPoint]:
    """Return every combination of the values, the last key's changing fastest.

    Args:
        path: of the recipe.
        settings: `key=value` for all points.
        over: `key=value,value`; the values are a TOML list without its brackets, or plain words.

    Raises:
        RecipeError: a point's recipe is invalid, has nothing to be compared by, or is another
            point's too.
    """
    choices = dict(map(_parse_choices, over))
    if len(choices) < len(over):
        raise RecipeError("--over: a key is given twice; give all its values to one --over")
    points = []
    for values in itertools.product(*choices.values()):
        point = dict(zip(choices, values, strict=True))
        overrides = [
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in point.items()
        ]
        recipe = load_recipe(path, [*settings, *overrides])
        if not (recipe.data.validation and recipe.reinforcements):
            raise RecipeError(
                f"{path}: points are compared on data.validation, by the stages of reinforcement;"
                " name a set there, such as --set 'data.validation=[\"validation.jsonl\"]'"
            )
        if recipe.compute.engine == "ray":
            raise RecipeError(
                f"{path}: a sweep trains in processes of this machine; set compute.engine=local, or"
                " run `waltzrl train --ray` for each point"
            )
        others = {key: value for key, value in point.items() if key != "seed"}
        points.append(
            SweepPoint(
                name=_name_point(point, choices),
                setting=_name_point(others, choices) if others else "all seeds",
                values=point,
                recipe=_with_own_copies(recipe, _name_point(point, choices)),
            )
        )
    names = [point.name for point in points]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise RecipeError(f"--over: two points are called {repeated[0]!r}; leave one of them out")
    return points


def _with_own_copies(recipe: Recipe, name: str) -> Recipe:
    """Give the copies of a point, if there are any, a place of their own."""
    copies = recipe.checkpointing.copies
    if copies is None:
        return recipe
    own = replace(recipe.checkpointing, copies=f"{copies.rstrip('/')}/{name}")
    return replace(recipe, checkpointing=own)


def _parse_choices(over: str) -> tuple[str, list[object]]:
    """Return a key and its values."""
    key, equals, text = over.partition("=")
    if not (equals and text.strip()):
        raise RecipeError(f"--over {over}: need key=value,value, such as models.rank=8,16")
    try:
        values: list[object] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        # Plain words need no quotation marks.
        values = [word.strip() for word in text.split(",")]
    if any(isinstance(value, dict) for value in values):
        raise RecipeError(f"--over {over}: tables cannot be swept; sweep their keys")
    if any(isinstance(value, date | time) for value in values):
        raise RecipeError(f"--over {over}: no key is a date or a time; put a text in quotes")
    return key.strip(), values


def _name_point(values: Mapping[str, object], among: Mapping[str, object]) -> str:
    parts = [
        f"{_shorten_key(key, among)}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
    ]
    return UNFIT.sub("_", ",".join(parts))


def _shorten_key(key: str, among: Mapping[str, object]) -> str:
    """Return the end of a key by which it is told from the others."""
    words = key.split(".")
    ends = (".".join(words[-count:]) for count in range(1, len(words)))
    others = [f".{other}" for other in among if other != key]
    return next((end for end in ends if not any(o.endswith(f".{end}") for o in others)), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """Train one point in a folder."""

    name: str
    recipe: Recipe
    folder: Path

    async def run(self, report: Callable[[int, int], None]) -> None:
        """Train on, or find that all is done. A point that diverges does not end the sweep.

        Raises:
            InputError: the point cannot be trained; names it.
        """
        from waltzrl.training.opening import train  # takes seconds to import, in each process

        try:
            await train(self.recipe, self.folder, lambda step: report(step.step + 1, step.total))
        except DivergenceError as error:
            write_bytes(self.folder / DIVERGED, f"{error}\n".encode())
        except WaltzError as error:
            raise InputError(f"{self.name}: {error}") from error
        else:
            (self.folder / DIVERGED).unlink(missing_ok=True)
