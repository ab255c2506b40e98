"""Log-in sessions: a signed cookie that any replica can check, and that ends with its API key.

    waltzrl_desk=4e0f12ab.1793880000.5f0e....9c1d...      key id . end . random . HMAC-SHA256

The HMAC's secret is the key's stored digest, so open sessions need no storage, and revoking or
exchanging a key ends its sessions. Those that people have ended before their time are kept in the
memory, as digests, until that time.
"""

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal, Self

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from waltzrl.gateway.access import KeyRing
from waltzrl.gateway.keys import DeskRole, Key
from waltzrl.store.memory.items import PutOp
from waltzrl.store.memory.store import MemoryStore

COOKIE = "waltzrl_desk"
HOURS = 8
ENDED = ("desk", "ended")
"""Namespace of the sessions that people have ended."""
GUEST = Key(
    name="anonymous", sha256="0" * 64, created=datetime.fromtimestamp(0, UTC), role="annotator"
)
"""Stands for everybody where the gateway has no keys, and may see what it has tried. Its secret is
known, so a cookie proves nothing; the random part of it keeps forms of other sites out."""
RANKS: dict[DeskRole, int] = {"viewer": 0, "annotator": 1, "reviewer": 2, "operator": 3}


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A log-in with an API key."""

    key: Key
    ends: int
    """Seconds since the epoch."""
    nonce: str
    """Tells the sessions of a key apart."""

    @classmethod
    def begin(cls, keys: KeyRing, secret: str, now: float) -> Self | None:
        """Begin a session if the secret is an API key with a role, else return None."""
        digest = sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
        # A key's id is the start of its digest, so few digests need the comparison in constant
        # time.
        for key in keys.named(digest[:8]):
            if hmac.compare_digest(key.sha256, digest) and key.role is not None:
                return cls(key=key, ends=int(now) + HOURS * 3600, nonce=secrets.token_hex(16))
        return None

    @classmethod
    def admit_guest(cls, cookie: str, now: float) -> Self:
        """Return a session that needs no key: that of the cookie, or a new one."""
        session = cls.resume(lambda key_id: [GUEST] * (key_id == GUEST.id), cookie, now)
        ends, nonce = int(now) + HOURS * 3600, secrets.token_hex(16)
        return session or cls(key=GUEST, ends=ends, nonce=nonce)

    @classmethod
    def resume(
        cls, find_keys: Callable[[str], Sequence[Key]], cookie: str, now: float
    ) -> Self | None:
        """Return the session of a cookie; None when it is forged or expired, or its key is gone."""
        key_id, _, rest = cookie.partition(".")
        ends, _, rest = rest.partition(".")
        nonce = rest.partition(".")[0]
        # int() accepts digits of any script, and takes long for a long text.
        if not (ends.isascii() and ends.isdigit() and len(ends) < 12 and int(ends) > now):
            return None
        for key in find_keys(key_id):
            session = cls(key=key, ends=int(ends), nonce=nonce)
            # The cookie is made anew from its parts and compared as a whole: nothing else of it is
            # trusted.
            if hmac.compare_digest(session.cookie.encode(), cookie.encode()) and key.role:
                return session
        return None

    @property
    def is_guest(self) -> bool:
        return self.key == GUEST

    @property
    def cookie(self) -> str:
        claim = f"{self.key.id}.{self.ends}.{self.nonce}"
        return f"{claim}.{self._mac('session', claim)}"

    @property
    def form_token(self) -> str:
        """The CSRF token in every form of this session."""
        return self._mac("form", self.cookie)

    def end(self, store: MemoryStore) -> None:
        """Let no replica resume it again."""
        # From then on the cookie is refused for its age, so the row may go.
        left = PutOp(ENDED, self._digest, {}, False, expires_at=self.ends)
        store.batch([left])

    def is_ended(self, store: MemoryStore) -> bool:
        """Whether the person has logged out."""
        return store.get(ENDED, self._digest) is not None

    def may(self, role: DeskRole) -> bool:
        """Whether it may do what `role` may."""
        return self.key.role is not None and RANKS[self.key.role] >= RANKS[role]

    def owns(self, token: str) -> bool:
        # As bytes, because compare_digest raises TypeError for text that is not ASCII.
        return hmac.compare_digest(self.form_token.encode(), token.encode())

    def seal(self, text: str) -> str:
        """Encrypt a text for an address, which is logged; only this session can decrypt it."""
        return self._cipher.encrypt(text.encode("utf-8", "surrogatepass")).decode()

    def unseal(self, sealed: str) -> str | None:
        """Decrypt a text; None when another session encrypted it."""
        try:
            return self._cipher.decrypt(sealed.encode()).decode("utf-8", "surrogatepass")
        except InvalidToken:
            return None

    @property
    def _digest(self) -> str:
        return sha256(self.cookie.encode()).hexdigest()

    @property
    def _cipher(self) -> Fernet:
        # A key of Fernet is 32 bytes in base64, as many as HMAC-SHA256 gives.
        return Fernet(urlsafe_b64encode(bytes.fromhex(self._mac("seal", self.cookie))))

    def _mac(self, purpose: Literal["session", "form", "seal"], text: str) -> str:
        secret = bytes.fromhex(self.key.sha256)
        return hmac.digest(secret, f"waltzrl desk {purpose}: {text}".encode(), "sha256").hex()
