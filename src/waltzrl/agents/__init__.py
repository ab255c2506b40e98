"""The roles: one agent drafts and revises, another reviews; a third may attack both."""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl.agents.attacker import AttackerAgent as AttackerAgent
    from waltzrl.agents.attacker import AttackWording as AttackWording
    from waltzrl.agents.conversation import ConversationAgent as ConversationAgent
    from waltzrl.agents.conversation import GivenDraft as GivenDraft
    from waltzrl.agents.feedback import FeedbackAgent as FeedbackAgent
    from waltzrl.agents.hybrid import HybridReviewer as HybridReviewer
    from waltzrl.agents.refusals import RefusalTexts as RefusalTexts
    from waltzrl.agents.rules_reviewer import RulesReviewer as RulesReviewer
    from waltzrl.agents.wording import Wording as Wording
    from waltzrl.agents.wording import load_wording as load_wording
    from waltzrl.agents.wording import pair_wording as pair_wording
    from waltzrl.agents.wording import save_wording as save_wording
    from waltzrl.agents.wording import wording_name as wording_name
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attacker": ("AttackWording", "AttackerAgent"),
            "conversation": ("ConversationAgent", "GivenDraft"),
            "feedback": ("FeedbackAgent",),
            "hybrid": ("HybridReviewer",),
            "refusals": ("RefusalTexts",),
            "rules_reviewer": ("RulesReviewer",),
            "wording": ("Wording", "load_wording", "pair_wording", "save_wording", "wording_name"),
        },
    )
