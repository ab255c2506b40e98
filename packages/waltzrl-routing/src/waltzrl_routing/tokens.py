"""Tokens by which an agent shows that it is the one it says.

A token is `EXPIRY.MAC`: seconds since the epoch, and the HMAC-SHA256 of agent and expiry under a
secret. None is stored; whoever has the secret can verify them all.
"""

import hmac
import time
from collections.abc import Callable
from typing import Protocol

from waltzrl.errors import InputError

LIFETIME_SECONDS = 24 * 3600.0
SHORTEST_SECRET = 32


class AuthRegistry(Protocol):
    """Whatever verifies the tokens of agents."""

    def verify(self, agent_name: str, token: str) -> bool:
        """Whether the token is this agent's, and valid now."""


class AgentTokens:
    """Issues and verifies tokens."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        """Take the secret that all processes share.

        Args:
            secret: at least 32 bytes, such as `secrets.token_bytes(32)`.
            clock: seconds since the epoch.

        Raises:
            InputError: the secret is too short.
        """
        if len(secret) < SHORTEST_SECRET:
            raise InputError(
                f"the secret of agent tokens has {len(secret)} bytes; need {SHORTEST_SECRET}"
            )
        self._secret = secret
        self._clock = clock

    def issue(self, agent_name: str, lifetime_seconds: float = LIFETIME_SECONDS) -> str:
        expiry = str(int(self._clock() + lifetime_seconds))
        return f"{expiry}.{self._mac(agent_name, expiry)}"

    def verify(self, agent_name: str, token: str) -> bool:
        if not (isinstance(token, str) and token.isascii()):  # whatever an agent sends
            return False
        expiry, _, mac = token.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(agent_name, expiry).encode()):
            return False
        # Only what the secret has signed is read as a number.
        return self._clock() < int(expiry)

    def _mac(self, agent_name: str, expiry: str) -> str:
        # An expiry has no period, so no other expiry and name are signed as the same text.
        return hmac.new(self._secret, f"{expiry}.{agent_name}".encode(), "sha256").hexdigest()
