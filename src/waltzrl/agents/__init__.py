"""The two roles: one agent drafts and revises, the other reviews."""

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
