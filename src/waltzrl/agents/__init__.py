"""The two roles: one agent drafts and revises, the other reviews."""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
    from waltzrl.agents.conversation import ConversationAgent, GivenDraft
    from waltzrl.agents.feedback import FeedbackAgent
    from waltzrl.agents.hybrid import HybridReviewer
    from waltzrl.agents.refusals import RefusalTexts
    from waltzrl.agents.rules_reviewer import RulesReviewer
    from waltzrl.agents.wording import (
        Wording,
        load_wording,
        pair_wording,
        save_wording,
        wording_name,
    )
    from waltzrl.collaboration import Drafter, Reviewer

__all__ = [
    "ConversationAgent",
    "Drafter",
    "FeedbackAgent",
    "GivenDraft",
    "HybridReviewer",
    "RefusalTexts",
    "Reviewer",
    "RulesReviewer",
    "Wording",
    "load_wording",
    "pair_wording",
    "save_wording",
    "wording_name",
]

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".conversation": ("ConversationAgent", "GivenDraft"),
            ".feedback": ("FeedbackAgent",),
            ".hybrid": ("HybridReviewer",),
            ".refusals": ("RefusalTexts",),
            ".rules_reviewer": ("RulesReviewer",),
            ".wording": ("Wording", "load_wording", "pair_wording", "save_wording", "wording_name"),
            "waltzrl.collaboration": ("Drafter", "Reviewer"),
        },
    )
