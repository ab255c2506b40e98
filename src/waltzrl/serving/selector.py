"""Which bundle serves whom: one for all, or one for a share of the conversations.

A roster that follows a release is in `waltzrl.online.release_follower`.
"""

from dataclasses import dataclass

from waltzrl.release.assignment import is_among
from waltzrl.serving.gateway import Assignment, Bundle, GatewayRequest


@dataclass(frozen=True, slots=True)
class SingleBundle:
    """The same for all."""

    choice: Assignment

    @property
    def serving(self) -> Bundle:
        return self.choice.bundle

    def assigned(self, request: GatewayRequest) -> Assignment:
        return self.choice


@dataclass(frozen=True, slots=True)
class PercentageSplit:
    """Stage 2 for a share of the conversations; raising the share takes none out."""

    first: Bundle
    last: Bundle
    percentage: float
    """0 to 100: who has `last`."""

    @property
    def serving(self) -> Bundle:
        return self.last

    def assigned(self, request: GatewayRequest) -> Assignment:
        moves = is_among("stage 2", conversation_key(request), self.percentage)
        return Assignment(self.last if moves else self.first)


def conversation_key(request: GatewayRequest) -> str:
    """Name what must not change its bundle half-way: the client's name for it, or how it began.

    It began with what its user said first: what comes before, many conversations have in common.
    """
    exchange = request.exchange
    began = next(said.content for said in exchange.prompt.messages if said.role == "user")
    return exchange.subject or f"{request.caller.name} {began}"
