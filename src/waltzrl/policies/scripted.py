"""A policy that says what it was told to say; the tests' only double."""

from collections.abc import Callable, Sequence

from waltzrl.policies.policy import Sampling
from waltzrl.records import Message, Reply


class ScriptedPolicy:
    """Replies from a list, in order, or from a function of the conversation."""

    def __init__(self, script: Sequence[str] | Callable[[Sequence[Message]], str]) -> None:
        self.heard: list[tuple[Message, ...]] = []
        """Every conversation this policy was shown."""
        if callable(script):
            self._next = script
        else:
            lines = iter(script)
            self._next = lambda _messages: next(lines)

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.heard.append(tuple(messages))
        return Reply(text=sampling.cut(self._next(messages)))
