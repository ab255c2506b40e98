"""The one loop, and every baseline in its shape."""

from waltzrl.collaboration.baselines import (
    GuardReviewer,
    KeywordReviewer,
    OracleReviewer,
    draft_only,
    load_keywords,
    safeguard,
)
from waltzrl.collaboration.elsewhere import ReplayPattern, ServedPattern
from waltzrl.collaboration.loop import Pattern, collaborate, guarded, observed

__all__ = [
    "GuardReviewer",
    "KeywordReviewer",
    "OracleReviewer",
    "Pattern",
    "ReplayPattern",
    "ServedPattern",
    "collaborate",
    "draft_only",
    "guarded",
    "load_keywords",
    "observed",
    "safeguard",
]
