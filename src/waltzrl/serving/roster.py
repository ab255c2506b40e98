"""Which bundle serves whom: one for all, or one for a share of the conversations.

A roster that follows a release is in `waltzrl.serving.releases`.
"""

from dataclasses import dataclass

from waltzrl.release.assignment import is_among
from waltzrl.serving.gateway import Assigned, Bundle, Request


@dataclass(frozen=True, slots=True)
class Always:
    """The same for all."""

    choice: Assigned

    @property
    def serving(self) -> Bundle:
        return self.choice.bundle

    def assigned(self, request: Request) -> Assigned:
        return self.choice


@dataclass(frozen=True, slots=True)
class Split:
    """Stage 2 for a share of the conversations; raising the share takes none out."""

    first: Bundle
    last: Bundle
    percentage: float
    """0 to 100: who has `last`."""

    @property
    def serving(self) -> Bundle:
        return self.last

    def assigned(self, request: Request) -> Assigned:
        moves = is_among("stage 2", conversation(request), self.percentage)
        return Assigned(self.last if moves else self.first)


def conversation(request: Request) -> str:
    """Name what must not change its bundle half-way: the client's name for it, or how it began.

    It began with what its user said first: what comes before, many conversations have in common.
    """
    exchange = request.exchange
    began = next(said.content for said in exchange.prompt.messages if said.role == "user")
    return exchange.subject or f"{request.caller.name} {began}"
