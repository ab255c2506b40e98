"""The one loop, and every baseline in its shape."""

from waltzrl.collaboration.baselines import GuardReviewer, OracleReviewer, draft_only, safeguard
from waltzrl.collaboration.guarded import guarded, observed
from waltzrl.collaboration.loop import Pattern, collaborate

__all__ = [
    "GuardReviewer",
    "OracleReviewer",
    "Pattern",
    "collaborate",
    "draft_only",
    "guarded",
    "observed",
    "safeguard",
]
