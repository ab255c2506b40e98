"""Policies without a model: one follows a script, for tests; one looks up saved replies."""

from collections.abc import Callable, Mapping, Sequence

from waltzrl.errors import PolicyError
from waltzrl.policies.policy import Sampling
from waltzrl.records import Message, Reply


class ScriptedPolicy:
    """Returns replies from a list, in order, or from a function of the conversation."""

    def __init__(self, script: Sequence[str] | Callable[[Sequence[Message]], str]) -> None:
        self.conversations: list[tuple[Message, ...]] = []
        """Every conversation that was passed to `reply`."""
        if callable(script):
            self._next = script
        else:
            lines = iter(script)
            self._next = lambda _messages: next(lines)

    revision = ""

    async def continue_text(self, text: str, sampling: Sampling) -> Reply:
        """Reply as to a conversation of one user's turn."""
        return await self.reply([Message(role="user", content=text)], sampling)

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.conversations.append(tuple(messages))
        return Reply(text=sampling.cut(self._next(messages)))


class SavedPolicy:
    """Looks up the reply to the last user turn, to measure reviewers on any model's replies."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        """Store the replies.

        Args:
            replies: from a user's turn to the reply; see `waltzrl.evaluation.judges.saved`.
        """
        self._replies = replies

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the saved reply.

        Raises:
            PolicyError: no reply was saved for this turn.
        """
        turn = messages[-1].content
        if turn not in self._replies:
            raise PolicyError(f"no reply was saved for {turn[:60]!r}")
        return Reply(text=self._replies[turn])
