"""What a rule says about a text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFinding:
    """One rule that spoke, and where."""

    rule: str
    """Its name, unique within the rulebook, such as `violence/explosives`."""
    category: str
    """Of `waltzrl.rules.CATEGORIES`."""
    severity: float
    """0 to 1, after the context (negation, education, defence ...) lowered or lifted it."""
    start: int
    """First character of the match in the text as given (after normalising, the nearest)."""
    end: int
