"""Rules as candidates: packs, and the recipe keys that say how they are used.

    bundle.toml     keys of a bundle: `rules`, `threshold`; a rule pack of the candidate is named
                    by its file, those that come with waltzrl by their names
    NAME.toml       rule packs

They are measured as stage 1: every prompt gets an answer that complies in form and says nothing,
and the rules decide whether it is returned or refused.
"""

import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from waltzrl.agents import ConversationAgent, RulesReviewer, load_wording
from waltzrl.agents.rules import DEFAULT_PACKS, lint_pack, load_rulebook
from waltzrl.collaboration import Reviewer
from waltzrl.errors import InputError
from waltzrl.evaluation import EvaluatedSystem
from waltzrl.evaluation.harm import HollowPolicy
from waltzrl.evaluation.patterns import safeguard
from waltzrl.foundation.files import toml_value
from waltzrl.policies import Sampling
from waltzrl_evolution.files import CandidateFiles
from waltzrl_evolution.run import Metric

BUNDLE = "bundle.toml"
KEYS = ("rules", "threshold")
"""The keys of a bundle that rules evolve."""


class RulesSubject:
    """Rule packs and a threshold."""

    name = "rules"
    metric: Metric = "f1"
    about = (
        f"{BUNDLE} holds the keys rules (a list of packs) and threshold (0 to 1; a higher one"
        " flags more). Every other .toml file is a rule pack: version = 1, and tables [[rule]] with"
        " id, category, severity (0 to 1), side (request or reply), patterns (re2), example (a text"
        " that must match) and twins (harmless texts that must not match)."
    )

    @asynccontextmanager
    async def open(self, candidate: CandidateFiles, folder: Path) -> AsyncIterator[EvaluatedSystem]:
        """Load the rules.

        Raises:
            InputError: a file is invalid, or a rule fails its own example or twins.
        """
        rules, threshold = bundle_keys(candidate, folder)
        for name in candidate.files.keys() - {BUNDLE}:
            if problems := lint_pack(folder / name):
                raise InputError(problems[0])
        reviewer = RulesReviewer(load_rulebook(rules), threshold)
        yield make_reviewed_system(reviewer, reviewer.name)


def make_reviewed_system(reviewer: Reviewer, name: str) -> EvaluatedSystem:
    """Return the system in which a reviewer decides about hollow answers.

    Args:
        reviewer: of the candidate.
        name: of the reviewer, for the log.
    """
    return EvaluatedSystem(
        name="evolved",
        pattern=safeguard,
        conversation=ConversationAgent(HollowPolicy(), load_wording("plain"), Sampling()),
        reviewer=reviewer,
        agents=f"conversation hollow, feedback {name}",
    )


def read_shipped_rules() -> CandidateFiles:
    """Return the baseline: the packs that a gateway loads by default, and its threshold."""
    return CandidateFiles(files={BUNDLE: bundle_text(DEFAULT_PACKS, 0.7)})


def bundle_text(rules: Sequence[str], threshold: float) -> str:
    """Return the text of a bundle.toml."""
    return f"rules = {toml_value(list(rules))}\nthreshold = {threshold}\n"


def bundle_keys(candidate: CandidateFiles, folder: Path) -> tuple[list[str], float]:
    """Return rules and threshold of a candidate's bundle.toml; its own packs get their paths.

    Raises:
        InputError: the file is missing or no TOML, a key is unknown or invalid, or a pack is
            missing.
    """
    try:
        table = tomllib.loads(candidate.files[BUNDLE])
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"a candidate needs a {BUNDLE} in TOML, got {error}") from None
    if table.keys() != set(KEYS):
        raise InputError(f"{BUNDLE} has the keys {sorted(table)}; it needs {', '.join(KEYS)}")
    rules, threshold = table["rules"], table["threshold"]
    if not isinstance(rules, list) or not all(isinstance(name, str) for name in rules):
        raise InputError(f"{BUNDLE}: rules must be a list of names, got {rules!r}")
    # A 1 in TOML is an integer, and a bool is one in Python.
    if type(threshold) not in (int, float) or not 0 < threshold <= 1:
        raise InputError(f"{BUNDLE}: threshold must be above 0 and at most 1, got {threshold}")
    if unused := candidate.files.keys() - {BUNDLE, *rules}:
        raise InputError(f"{BUNDLE} does not name the pack {min(unused)!r}; add it to rules")
    paths = [str(folder / name) if name in candidate.files else name for name in rules]
    return paths, float(threshold)
