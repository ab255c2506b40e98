"""Which of the interactions that are remembered are taken, and that each is taken once."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from waltzrl.memory.schemas import SafetyEvaluation
from waltzrl.records import Collaboration
from waltzrl.release.assignment import is_among

LeftOut = Literal["shadow", "unanswered", "without_consent", "of_other_users"]
"""Why an interaction is not taken. Of users: they are held out, or are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Interactions to take: answered, seen by somebody, with consent, and of these users."""

    users: Literal["learning", "held-out"] = "learning"
    """Those to learn from, or those that are kept aside to evaluate with."""
    held_out_percentage: float = 10.0
    """Share of the users who are kept aside; who is stays so when it is raised."""

    def takes(self, evaluation: SafetyEvaluation) -> bool:
        """Say whether the interaction is one of them."""
        return self.leaves_out(evaluation) is None

    def leaves_out(self, evaluation: SafetyEvaluation) -> LeftOut | None:
        """Say why the interaction is none of them; None when it is."""
        if evaluation.arm == "shadow":
            return "shadow"
        if evaluation.collaboration is None or evaluation.decision == "error":
            return "unanswered"
        if not evaluation.may_learn:
            return "without_consent"
        if self._holds_out(evaluation) is not (self.users == "held-out"):
            return "of_other_users"
        return None

    def _holds_out(self, evaluation: SafetyEvaluation) -> bool:
        """Draw by the user; by the request, all its choices together, where nobody was named."""
        whom = evaluation.subject or evaluation.id.partition("/")[0]
        return is_among("held out", whom, self.held_out_percentage)


def said_in(evaluation: SafetyEvaluation) -> Collaboration:
    """Return what was said in an interaction that is taken."""
    assert evaluation.collaboration is not None, "only answers are taken"
    return evaluation.collaboration


def distinct(
    evaluations: Iterable[SafetyEvaluation],
    same: Callable[[SafetyEvaluation], Hashable],
    known: Callable[[SafetyEvaluation], int],
) -> list[SafetyEvaluation]:
    """Keep one of those that are the same.

    Args:
        evaluations: in any order.
        same: equal for two of which one is enough.
        known: how much is known of one; more is better, then newer is.

    Returns:
        Those kept, the oldest first.
    """
    kept: dict[Hashable, SafetyEvaluation] = {}
    for one in evaluations:
        before = kept.setdefault(same(one), one)
        if (known(one), one.time, one.id) > (known(before), before.time, before.id):
            kept[same(one)] = one
    return sorted(kept.values(), key=lambda one: (one.time, one.id))
