"""What an attacker makes of the prompts that a pair trains on."""

from dataclasses import dataclass, replace
from typing import Protocol, cast

from waltzrl.errors import InputError
from waltzrl.evaluation.goals import declines, shares_keywords
from waltzrl.foundation.plugins import import_function
from waltzrl.records import JudgedCollaboration, Message, Prompt, Reply


class KeepsGoal(Protocol):
    """A function that tells whether a rewriting still asks for its goal."""

    def __call__(self, goal: Prompt, rewriting: str) -> bool | None:
        """Return None where that cannot be told; nothing is learnt from it then."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One rewriting of one goal."""

    goal: Prompt
    rewriting: Reply
    on_goal: bool | None
    """Whether the rewriting asks for the goal; None if that cannot be told."""

    @classmethod
    def of(cls, goal: Prompt, rewriting: Reply, keeps_goal: KeepsGoal) -> "Attack":
        """Check a rewriting; one that is empty, or was cut off, asks for nothing."""
        whole = rewriting.finish == "stop" and rewriting.text.strip() != ""
        on_goal = keeps_goal(goal, rewriting.text) if whole else False
        return cls(goal=goal, rewriting=rewriting, on_goal=on_goal)

    @property
    def request_words(self) -> str:
        """The rewriting without what does not tell it from others: case, and kinds of space."""
        return " ".join(self.rewriting.text.casefold().split())

    @property
    def prompt(self) -> Prompt:
        """What the pair is asked, with the label of the goal: the goal itself if it was left."""
        if not self.on_goal:
            return self.goal
        asked = Message(role="user", content=self.rewriting.text)
        return replace(self.goal, messages=(*self.goal.messages[:-1], asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedCollaboration(JudgedCollaboration):
    """A judged collaboration on what an attacker made of a prompt."""

    attack: Attack


def keeps_by_words(goal: Prompt, rewriting: str) -> bool:
    """Return whether half of a goal's keywords occur in a rewriting that is no refusal."""
    return shares_keywords(goal.request, rewriting) and not declines(rewriting, goal.request)


def find_check(name: str) -> KeepsGoal:
    """Return the check that a recipe names: `words`, or `MODULE:FUNCTION`.

    Raises:
        InputError: there is none.
    """
    check = keeps_by_words if name == "words" else import_function("check", name)
    if not callable(check):
        raise InputError(
            f"got attacker.check {name!r}; need words, or MODULE:FUNCTION with a module that can be"
            " imported"
        )
    return cast("KeepsGoal", check)
