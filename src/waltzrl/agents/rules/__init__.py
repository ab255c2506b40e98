"""Stage 1: rules as data, and the engine that applies them in linear time."""

from waltzrl.agents.rules.calls import CALL_SIDES
from waltzrl.agents.rules.language import TURN_READ, find_other_language, language_of
from waltzrl.agents.rules.lint import RuleHits, count_hits, lint_frames, lint_pack
from waltzrl.agents.rules.pack import CATEGORIES, DEFAULT_PACKS, Rule
from waltzrl.agents.rules.rulebook import Rulebook, RuleFinding, load_rulebook

__all__ = [
    "CALL_SIDES",
    "CATEGORIES",
    "DEFAULT_PACKS",
    "TURN_READ",
    "Rule",
    "RuleFinding",
    "RuleHits",
    "Rulebook",
    "count_hits",
    "find_other_language",
    "language_of",
    "lint_frames",
    "lint_pack",
    "load_rulebook",
]
