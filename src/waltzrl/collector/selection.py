"""Which of the interactions that are remembered are taken, and that each is taken once."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from waltzrl.memory.schemas import SafetyEvaluation
from waltzrl.records import Collaboration
from waltzrl.release.assignment import is_among


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Interactions to take: answered, seen by somebody, with consent, and of these users."""

    users: Literal["learning", "held-out"] = "learning"
    """Those to learn from, or those that are kept aside to evaluate with."""
    held_out_percentage: float = 10.0
    """Share of the users who are kept aside; who is stays so when it is raised."""

    def takes(self, evaluation: SafetyEvaluation) -> bool:
        """Say whether the interaction is one of them; a shadow's, which nobody saw, never is."""
        return (
            evaluation.may_learn
            and evaluation.collaboration is not None
            and evaluation.decision != "error"
            and evaluation.arm != "shadow"
            and self._holds_out(evaluation) is (self.users == "held-out")
        )

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
