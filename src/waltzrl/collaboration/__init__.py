"""The one loop, and every baseline in its shape."""

from waltzrl.collaboration.baselines import (
    GuardReviewer,
    KeywordReviewer,
    OracleReviewer,
    draft_only,
    load_keywords,
    safeguard,
)
from waltzrl.collaboration.guarded import guarded, observed
from waltzrl.collaboration.loop import Pattern, collaborate
from waltzrl.collaboration.served import Replay, Served

__all__ = [
    "GuardReviewer",
    "KeywordReviewer",
    "OracleReviewer",
    "Pattern",
    "Replay",
    "Served",
    "collaborate",
    "draft_only",
    "guarded",
    "load_keywords",
    "observed",
    "safeguard",
]
