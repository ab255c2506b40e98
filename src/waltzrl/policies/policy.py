"""The protocol of a policy, and how it samples."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from waltzrl.policies.chat_completion import Json
from waltzrl.policies.json_format import JsonFormat
from waltzrl.policies.json_schema import JsonSchema
from waltzrl.policies.word_format import WordFormat
from waltzrl.records import Message, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a policy generates a reply."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    """0 is greedy. Training samples at 1, so that log-probabilities are the policy's own."""
    top_p: float = 1.0
    """Sample among the likeliest tokens whose probabilities add up to this; 1 is all tokens."""
    seed: int | None = None
    """The seed of this reply alone; None takes the policy's own random numbers."""
    tools: Sequence[Json] = ()
    """Definitions of functions, in the format of chat completions, that the reply may call."""
    schema: JsonSchema | None = None
    """The reply is a JSON object that fits it, unless it is cut at the limit."""
    enough: Callable[[str], bool] | None = None
    """A function that is called with the text so far; True stops the generation there. It must be
    monotonic: true for a text, it is true for every continuation. Then the reply does not depend on
    the pieces in which the text arrives.
    """

    format: JsonFormat | WordFormat | None = None
    """The format of the reply; then `Reply.label_probabilities` are those of its labels. Policies
    enforce one in JSON where they can, and only read one in words. Training samples without one.
    """
    template: Mapping[str, Json] = field(default_factory=dict)
    """The further arguments of the model's chat template, such as a guard model's guideline."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                "max_new_tokens must be 1 or more, temperature 0 or more, and top_p above 0 and at"
                f" most 1, got {self}"
            )

    def cut(self, text: str) -> str:
        """Return the shortest beginning of `text` that is enough, or all of it if none is."""
        enough = self.enough
        if enough is None or not enough(text):
            return text
        return text[: bisect_left(range(len(text)), True, key=lambda end: enough(text[:end]))]


class Policy(Protocol):
    """Something that replies to a conversation."""

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn.

        Raises:
            PolicyError: the policy could not reply, such as server down or prompt too long.
        """
        ...


class GuardPolicy(Policy, Protocol):
    """A policy that can also continue a bare text, and knows which model wrote its last reply."""

    @property
    def revision(self) -> str:
        """What the server called its model in the last reply, or the hash of local weights."""
        ...

    async def continue_text(self, text: str, sampling: Sampling) -> Reply:
        """Continue a text in which special tokens may be spelt out, without a chat template.

        Raises:
            PolicyError: as `reply`.
        """
        ...
