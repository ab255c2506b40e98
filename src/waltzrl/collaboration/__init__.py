"""The loop, and the baselines and replays with the same signature."""

from waltzrl.collaboration.loop import Pattern, Transcript, collaborate, guarded, observed
from waltzrl.collaboration.patterns import (
    GuardReviewer,
    KeywordReviewer,
    OracleReviewer,
    ReplayPattern,
    ServedPattern,
    best_of_3,
    draft_only,
    load_guards,
    load_keywords,
    safeguard,
)

__all__ = [
    "GuardReviewer",
    "KeywordReviewer",
    "OracleReviewer",
    "Pattern",
    "ReplayPattern",
    "ServedPattern",
    "Transcript",
    "best_of_3",
    "collaborate",
    "draft_only",
    "guarded",
    "load_guards",
    "load_keywords",
    "observed",
    "safeguard",
]
