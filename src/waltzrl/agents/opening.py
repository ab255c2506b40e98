"""Reviewers that packages provide: classifiers with weights, found by their entry points.

A package's entry point in the group `waltzrl.reviewers` names a function without arguments that
loads an `ExchangeClassifier`. The files of its folder `weights` are its weights and its
calibration. A folder `pair` beside it is an exported pair, whose agents may be adapters alone.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast, get_args

from waltzrl.agents.classifier import ClassifierReviewer, ExchangeClassifier
from waltzrl.errors import InputError, missing_extra
from waltzrl.foundation.plugins import find_distribution, find_entry, load_entry

GROUP = "waltzrl.reviewers"
RULES = "rules"
"""The reviewer that needs no package: the rules alone."""
FEEDBACK_AGENT = "feedback-agent"
"""The reviewer that is the pair's own feedback agent, where the pair names another one."""
PAIR = "pair"
REVIEWER = "reviewer:"
"""The prefix of such a reviewer's name, where a model is named."""
GUARD = "guard:"
"""The prefix of the name of a guard model, where a reviewer is named."""
GuardKind = Literal["wildguard", "llama-guard", "qwen3guard", "granite-guardian", "shieldgemma"]
"""The guard models whose formats we speak."""


def open_reviewer(name: str, false_alarms: float | None = None) -> ClassifierReviewer:
    """Load a reviewer by its name, which takes seconds; see `ClassifierReviewer`.

    Raises:
        InputError: no installed package provides it, its weights are damaged, or its curve has no
            such point.
        MissingExtraError: torch is missing.
    """
    load_classifier = load_entry(_find_entry_point(name))
    try:
        classifier = cast("Callable[[], ExchangeClassifier]", load_classifier)()
    except ModuleNotFoundError as missing:
        raise missing_extra(missing) or missing from missing
    return ClassifierReviewer(classifier, false_alarms)


def reviewer_folder(model: str) -> Path | None:
    """Return the folder of a reviewer's weights; None where `model` names no such reviewer.

    Raises:
        InputError: no installed package provides it.
    """
    if not model.startswith(REVIEWER):
        return None
    return _find_package(_find_entry_point(model.removeprefix(REVIEWER))) / "weights"


def find_pair(name: Path) -> Path:
    """Return the folder of a pair: one that `waltzrl export` wrote, or an installed package's.

    Raises:
        InputError: there is no such folder, and no such pair.
    """
    entry = find_entry(GROUP, str(name))
    packaged = [] if entry is None else [_find_package(entry) / PAIR]
    found = [folder for folder in (name, *packaged) if folder.is_dir()]
    if not found:  # a hub would be asked for a model of that name
        raise InputError(
            f"{name}: no such folder; --pair needs one that waltzrl export wrote, or the name of an"
            " installed package that brings a pair, such as smollm2"
        )
    return found[0]


def guard_kind(name: str) -> GuardKind:
    """Return a kind of guard model by its name.

    Raises:
        InputError: there is none.
    """
    for kind in get_args(GuardKind):
        if kind == name:
            return cast("GuardKind", kind)
    raise InputError(
        f"got the kind of guard model {name!r}, need one of {', '.join(get_args(GuardKind))}"
    )


def installed_reviewers() -> list[str]:
    """Return the names of all reviewers that packages provide."""
    return sorted(entry_points(group=GROUP).names)


def _find_package(entry: EntryPoint) -> Path:
    # Nothing of the package is run to find it, because it may load torch.
    spec = find_spec(entry.module)
    assert spec is not None, "entry points are of packages that are installed"
    assert spec.origin is not None, "a reviewer's package has an __init__.py"
    return Path(spec.origin).parent


def _find_entry_point(name: str) -> EntryPoint:
    entry = find_entry(GROUP, name)
    if entry is None:
        others = ", ".join((RULES, *installed_reviewers()))
        raise InputError(
            f"no installed package provides the reviewer {name!r} (there are: {others}); "
            f"install {find_distribution(GROUP, name) or 'the package that provides it'}, or "
            "choose another reviewer"
        )
    return entry
