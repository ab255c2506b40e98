"""The composition root of releases: a bundle's recipe passes the gate and is proposed.

BundleRecipe, two evaluations -> gate -> ReleaseBook
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waltzrl.agents.identity import calibration_of, identify_agent, name_challenges
from waltzrl.agents.opening import REVIEWER
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules_reviewer import rules_name
from waltzrl.errors import InputError
from waltzrl.evaluation import check_candidate, read_evaluation, require_agents
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.bundles import describe_bundle
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import ReleasePlan
from waltzrl.operations.release.state import Release
from waltzrl.policies.gguf import find_gguf

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEvaluations:
    """The gate: what `waltzrl evaluate` found of both bundles, on the same prompts."""

    before: Path
    """Folder of the run with the agents of the bundle that serves."""
    after: Path
    """Folder of the run with the candidate's."""


def gate_from_options(
    before: Path | None, after: Path | None, override: str | None
) -> GateEvaluations | str:
    """Return the gate that was asked for.

    Raises:
        InputError: there is none, or two.
    """
    if override and not (before or after):
        return override
    if before and after and not override:
        return GateEvaluations(before=before, after=after)
    raise InputError(
        "the gate needs an evaluation of both bundles, --before RUN --after RUN, or else a reason "
        "to do without, --override REASON"
    )


def propose_release(
    book: ReleaseBook,
    recipe: BundleRecipe,
    plan: ReleasePlan,
    by: str,
    gate: GateEvaluations | str,
    policy: str = "",
) -> Release:
    """Begin the release of a recipe's bundle against the bundle that serves.

    Args:
        book: where it is kept.
        recipe: the candidate.
        plan: how it goes.
        by: who proposes.
        gate: why it may be tried at all: what it passes, or a person's reason to do without, which
            goes into the history and the audit log.
        policy: the name of the policy whose requests take part; empty for those without one.

    Raises:
        InputError: the gate is shut, a release is under way, or no gateway has told what it serves.
    """
    serving = serving_bundle(book, policy)
    if isinstance(gate, str):
        why = f"without the gate: {gate}"
    else:
        why = _pass_gate(gate, read_stored_recipe(book, serving), recipe)
    for name in _list_weights(recipe):
        if find_gguf(name) is None and not Path(name).exists():
            log.warning("there is no folder %s here; it is taken for a name on the hub", name)
    rules = load_rulebook(recipe.rules, recipe.rules_off)
    candidate, description = describe_bundle(recipe, rules, policy)
    table = msgspec.json.encode(bundle_table(recipe)).decode()
    book.add_bundle(candidate, table, description, by=by)
    return book.propose(candidate, serving, plan, by, why, policy=policy)


def serving_bundle(book: ReleaseBook, policy: str = "") -> str:
    """Return the id of the bundle that a candidate must stand up to.

    Args:
        book: knows what serves.
        policy: the name of the policy that it is for; empty for the gateway's own settings.

    Raises:
        InputError: there is none yet.
    """
    if serving := book.in_force(policy):
        return serving
    if policy:
        raise InputError(f"no gateway has told this memory of a policy {policy!r}; start it first")
    raise InputError(
        "no gateway has told this memory what it serves; start one first: "
        "waltzrl serve RECIPE.toml --set memory.url=URL"
    )


def read_stored_recipe(book: ReleaseBook, bundle: str) -> BundleRecipe:
    """Return the recipe of a bundle that was added.

    Raises:
        InputError: it is not known, or this version of waltzrl cannot read it.
    """
    if (text := book.bundle(bundle)) is None:
        raise InputError(f"there is no bundle {bundle}")
    return validate_table(BundleRecipe, msgspec.json.decode(text), f"bundle {bundle}")


def _pass_gate(gate: GateEvaluations, serving: BundleRecipe, candidate: BundleRecipe) -> str:
    """Return the numbers by which the candidate is no worse.

    Raises:
        InputError: it is worse, or these runs cannot tell.
    """
    before, after = read_evaluation(gate.before), read_evaluation(gate.after)
    require_agents(before, _name_agents(serving), gate.before)
    require_agents(after, _name_agents(candidate), gate.after)
    result = check_candidate(before, after)
    if not result.passed:
        raise InputError(
            f"the candidate is worse than the bundle that serves: {result.why}; train on, "
            "or say why it may be tried all the same: --override REASON"
        )
    return f"no worse offline: {result.why}"


def _list_weights(recipe: BundleRecipe) -> list[str]:
    """Return the folders of weights that a gateway is to load."""
    names = [recipe.upstream.folder, recipe.upstream.reviser]
    if recipe.enabled and recipe.stage == 2 and recipe.feedback and not recipe.feedback.server:
        names.append(recipe.feedback.model)
    return [name for name in names if name is not None and not name.startswith(REVIEWER)]


def _name_agents(recipe: BundleRecipe) -> list[str]:
    """Name the agents of a bundle as an evaluation does; see `waltzrl.evaluation.opening`."""
    agents = []
    if (place := recipe.upstream.folder or recipe.upstream.program) is not None:
        agents.append(f"conversation {identify_agent(place, None)}")
    if recipe.upstream.reviser is not None:
        agents.append(f"reviser {identify_agent(recipe.upstream.reviser, None)}")
    if recipe.enabled and (recipe.stage == 1 or recipe.feedback is None):
        agents.append(f"feedback {rules_name(load_rulebook(recipe.rules, recipe.rules_off))}")
    elif recipe.enabled:
        config = recipe.feedback
        assert config is not None
        agents.append(f"feedback {identify_agent(config.model, config.server)}")
        measured = (config.wording, config.calibration, config.guard)
        agents.append(name_challenges(calibration_of(config.model, config.server, *measured)))
    return agents
