"""Stage 1: rules as data, and the engine that runs them in linear time."""

from waltzrl.rules.finding import RuleFinding
from waltzrl.rules.lint import lint_pack
from waltzrl.rules.pack import DEFAULT_PACKS
from waltzrl.rules.rule import CATEGORIES, Rule
from waltzrl.rules.rulebook import Rulebook, load_rulebook

__all__ = [
    "CATEGORIES",
    "DEFAULT_PACKS",
    "Rule",
    "RuleFinding",
    "Rulebook",
    "lint_pack",
    "load_rulebook",
]
