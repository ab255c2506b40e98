"""Splits the conversations between two bundles."""

from dataclasses import dataclass

from waltzrl.foundation.buckets import is_among
from waltzrl.gateway.exchange import Assignment, Bundle, GatewayRequest


@dataclass(frozen=True, slots=True)
class PercentageSplit:
    """Stage 2 for a share of the conversations; raising the share moves none of them back."""

    first: Bundle
    last: Bundle
    percentage: float
    """The share of conversations that `last` serves, 0 to 100."""

    def serving(self, policy: str = "") -> Bundle:
        return self.last

    def assigned(self, request: GatewayRequest) -> Assignment:
        moved = is_among("stage 2", conversation_key(request), self.percentage)
        return Assignment(self.last if moved else self.first)


def conversation_key(request: GatewayRequest) -> str:
    """Return the key that assigns a conversation to a bundle: its subject, or its beginning.

    The beginning is the user's first message, because many conversations share a system message.
    """
    prompt = request.chat.prompt
    users = (message.content for message in prompt.messages if message.role == "user")
    return request.chat.subject or f"{request.caller.name} {next(users, prompt.request)}"
