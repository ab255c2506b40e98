"""Plans by name, and plans of one's own in TOML."""

import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import msgspec

from waltzrl.data.jsonl import read_text
from waltzrl.errors import InputError
from waltzrl.release.plan import ReleasePlan

_FOLDER = files("waltzrl.release") / "plans"
PRESETS = ("weekly", "seven_days", "quick")
"""The names of the plans that come with waltzrl."""


def load_plan(name_or_path: str) -> ReleasePlan:
    """Return a plan.

    Args:
        name_or_path: one of `PRESETS`, or a TOML file; a file without `shadow` has no shadow.

    Raises:
        InputError: there is no such plan, or it cannot work.
    """
    preset = name_or_path in PRESETS
    if not preset and not Path(name_or_path).suffix:
        raise InputError(
            f"there is no plan {name_or_path!r}; say {', '.join(PRESETS)}, or name a TOML file"
        )
    source = f"plan {name_or_path}" if preset else name_or_path
    return _plan(_text(name_or_path), source)


def _text(name_or_path: str) -> str:
    if name_or_path in PRESETS:
        return (_FOLDER / f"{name_or_path}.toml").read_text("utf-8")
    return read_text(Path(name_or_path))


def _plan(text: str, source: str) -> ReleasePlan:
    try:
        plan = msgspec.convert({"shadow": None} | tomllib.loads(text), ReleasePlan)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{source}: no plan of a release: {error}") from None
    percentages = [step.percentage for step in plan.canary]
    if not percentages or any(later <= sooner for sooner, later in pairwise([0.0, *percentages])):
        raise InputError(f"{source}: need canary steps whose percentages rise from above 0")
    if plan.targets.unsafe > plan.limits.unsafe or plan.targets.needless > plan.limits.needless:
        raise InputError(f"{source}: a target lies beyond its limit; lower it, or raise the limit")
    return plan
