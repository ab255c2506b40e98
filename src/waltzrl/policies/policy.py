"""The seam between the house and anything that can reply."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from waltzrl.records import Message, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a policy chooses its words."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    """0 is greedy. Training samples at 1, so that log-probabilities are the policy's own."""
    enough: Callable[[str], bool] | None = None
    """Asked with the text so far; True ends the reply there, although more would follow.

    What is enough stays enough when text is added, so that it is the same in whatever pieces the
    text arrives.
    """

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.temperature < 0:
            raise ValueError(
                f"max_new_tokens must be 1 or more and temperature 0 or more, got {self}"
            )

    def cut(self, text: str) -> str:
        """Return the shortest beginning of `text` that is enough, or all of it."""
        enough = self.enough
        if enough is None or not enough(text):
            return text
        return text[: bisect_left(range(len(text)), True, key=lambda end: enough(text[:end]))]


class Policy(Protocol):
    """Something that replies to a conversation."""

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn.

        Raises:
            PolicyError: the policy could not reply (server down, context too long).
        """
        ...
