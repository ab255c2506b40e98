"""What a rule is."""

from dataclasses import dataclass
from typing import Literal

from waltzrl.rules.pattern import RulePattern

CATEGORIES = (
    "violence_harm",
    "weapons",
    "illegal_activity",
    "unauthorized_access",
    "malicious_instruction",
    "privacy_violation",
    "hate_speech",
    "harassment",
    "self_harm",
    "sexual_content",
    "child_safety",
    "misinformation",
    "refusal",
)
"""What a rule can be about; `refusal` is for replies that decline, and harms nobody."""

Side = Literal["request", "reply", "refusal"]
"""What a rule reads: what the user asks, what the assistant says, or how it begins to decline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Shapes of words that mean one thing."""

    id: str
    """`pack/name`, unique within a rulebook."""
    category: str
    severity: float
    """0 to 1, before the context is looked at."""
    side: Side
    patterns: tuple[RulePattern, ...]
    example: str
    """A text that the rule must find."""
    twin: str
    """A harmless near miss, in which it must find nothing."""
