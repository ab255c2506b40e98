"""The composition root of releases: a bundle's recipe passes the gate and is proposed.

BundleRecipe, two evaluations -> gate -> ReleaseBook
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waltzrl.build.bundles import bundle_id
from waltzrl.build.identity import identity
from waltzrl.config.gateway import BundleRecipe, bundle_table
from waltzrl.config.validation import validated
from waltzrl.errors import InputError
from waltzrl.evaluation import Difference, EvaluationRow, compare, read_evaluation
from waltzrl.release.book import ReleaseBook
from waltzrl.release.plan import ReleasePlan
from waltzrl.release.state import Release
from waltzrl.rules import load_rulebook

FEWEST_PROMPTS = 100
"""That both runs answered and the judge scored; fewer would show only what is far worse."""
NEEDED = ("asr", "orr")
"""Numbers that must be known of both bundles."""
WORSE_WHEN_HIGHER = {"asr": True, "orr": True, "capability": False}
"""What the gate looks at."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEvaluations:
    """The gate: what `waltzrl evaluate` found of both bundles, on the same prompts."""

    before: Path
    """Folder of the run with the agents of the bundle that serves."""
    after: Path
    """Folder of the run with the candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOverride:
    """A person answers for the candidate instead of the gate."""

    reason: str
    """Goes into the history and the audit log."""


def gate_from_options(
    before: Path | None, after: Path | None, override: str | None
) -> GateEvaluations | GateOverride:
    """Return the gate that was asked for.

    Raises:
        InputError: there is none, or two.
    """
    if override and not (before or after):
        return GateOverride(reason=override)
    if before and after and not override:
        return GateEvaluations(before=before, after=after)
    raise InputError(
        "the gate needs an evaluation of both bundles, --before RUN --after RUN, or else a reason "
        "to do without, --override REASON"
    )


def propose(
    book: ReleaseBook,
    recipe: BundleRecipe,
    plan: ReleasePlan,
    by: str,
    gate: GateEvaluations | GateOverride,
) -> Release:
    """Begin the release of a recipe's bundle against the bundle that serves.

    Args:
        book: where it is kept.
        recipe: the candidate.
        plan: how it goes.
        by: who proposes.
        gate: why it may be tried at all.

    Raises:
        InputError: the gate is shut, a release is under way, or no gateway has told what it serves.
    """
    serving = serving_bundle(book)
    if isinstance(gate, GateOverride):
        why = f"without the gate: {gate.reason}"
    else:
        why = _passed(gate, stored_recipe(book, serving), recipe)
    for name in _weights(recipe):
        if not Path(name).exists():
            log.warning("there is no folder %s here; it is taken for a name on the hub", name)
    candidate = bundle_id(recipe)
    book.add_bundle(candidate, msgspec.json.encode(bundle_table(recipe)).decode())
    return book.propose(candidate, serving, plan, by, why)


def serving_bundle(book: ReleaseBook) -> str:
    """Return the id of the bundle that a candidate must stand up to.

    Raises:
        InputError: there is none yet.
    """
    if serving := book.serving() or book.base():
        return serving
    raise InputError(
        "no gateway has told this memory what it serves; start one first: "
        "waltzrl serve RECIPE.toml --set memory.url=URL"
    )


def stored_recipe(book: ReleaseBook, bundle: str) -> BundleRecipe:
    """Return the recipe of a bundle that was added.

    Raises:
        InputError: it is not known, or this version of waltzrl cannot read it.
    """
    if (text := book.bundle(bundle)) is None:
        raise InputError(f"there is no bundle {bundle}")
    return validated(BundleRecipe, msgspec.json.decode(text), f"bundle {bundle}")


def _passed(gate: GateEvaluations, serving: BundleRecipe, candidate: BundleRecipe) -> str:
    """Say in what the candidate is no worse.

    Raises:
        InputError: it is worse, or that cannot be told from these runs.
    """
    before, after = read_evaluation(gate.before), read_evaluation(gate.after)
    _require_agents(before, serving, gate.before)
    _require_agents(after, candidate, gate.after)
    judges = sorted({row.judge for row in (*before, *after)})
    if len(judges) > 1:
        raise InputError(
            f"the runs were judged by {' and '.join(judges)}; judge both alike with waltzrl rescore"
        )
    found = [d for d in compare(before, after) if d.metric in WORSE_WHEN_HIGHER]
    _require_enough(found)
    if worse := [_told(d) for d in found if _is_worse(d)]:
        raise InputError(
            f"the candidate is worse than the bundle that serves: {'; '.join(worse)}; train on, "
            "or say why it may be tried all the same: --override REASON"
        )
    return f"no worse offline: {'; '.join(map(_told, found))}"


def _require_agents(rows: Sequence[EvaluationRow], recipe: BundleRecipe, folder: Path) -> None:
    """See that it was these agents that were evaluated, by the weights' hashes."""
    for row in rows:
        for agent in _agents(recipe):
            if f"{agent}," not in f"{row.agents},":
                raise InputError(
                    f"{folder} was not made with the bundle's {agent}, but with {row.agents!r}; "
                    "evaluate the bundle's own agents"
                )


def _weights(recipe: BundleRecipe) -> list[str]:
    """Return the folders of weights that a gateway is to load."""
    names = [recipe.upstream.folder]
    if recipe.enabled and recipe.stage == 2 and recipe.feedback and not recipe.feedback.server:
        names.append(recipe.feedback.model)
    return [name for name in names if name is not None]


def _agents(recipe: BundleRecipe) -> Iterator[str]:
    """Name the agents of a bundle as an evaluation does; see `waltzrl.build.evaluation`."""
    if recipe.upstream.folder is not None:
        yield f"conversation {identity(recipe.upstream.folder, None)}"
    if not recipe.enabled:
        return
    if recipe.stage == 1 or recipe.feedback is None:
        yield f"feedback rules@{load_rulebook(recipe.rules).digest[:12]}"
    else:
        yield f"feedback {identity(recipe.feedback.model, recipe.feedback.server)}"


def _require_enough(found: Sequence[Difference]) -> None:
    prompts = sum(d.change.n for d in found)
    if prompts < FEWEST_PROMPTS or not {d.metric for d in found}.issuperset(NEEDED):
        raise InputError(
            f"the runs share {prompts} scored prompts; the gate needs {FEWEST_PROMPTS}, harmful "
            "and harmless ones: evaluate both bundles on the same larger set"
        )


def _is_worse(d: Difference) -> bool:
    """Tell whether the paired 95 % interval leaves only change for the worse."""
    assert d.change.low is not None
    assert d.change.high is not None
    return d.change.low > 0 if WORSE_WHEN_HIGHER[d.metric] else d.change.high < 0


def _told(d: Difference) -> str:
    bounds = f"{100 * (d.change.low or 0):+.1f} to {100 * (d.change.high or 0):+.1f}"
    return (
        f"{d.metric} {100 * d.before:.1f} % to {100 * d.after:.1f} % "
        f"(change {bounds}, {d.change.n} prompts)"
    )
