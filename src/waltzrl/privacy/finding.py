"""What a scan finds."""

from typing import Literal, Protocol

import msgspec

Kind = Literal[
    "email",
    "phone",
    "credit_card",
    "iban",
    "ssn",
    "national_id",
    "ip_address",
    "secret",
    "personal_name",
]
"""`ssn` is the US one; `secret` is a key, a token or a password."""
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]

Action = Literal["redact", "mask", "hash", "keep", "seal"]
"""What becomes of a finding: a word in its place, most of it hidden, a keyed digest, nothing, or a
token that can be opened again with the key."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of personal data; never holds the piece itself."""

    kind: Kind
    start: int
    end: int
    """Characters [start, end) of the text."""
    score: float
    """0 to 1: how sure."""
    validator: str
    """What confirmed it: `luhn`, `mod97`, `stdnum.us.ssn`, ...; `pattern` when nothing else did."""


class Engine(Protocol):
    """Finds personal data in a text."""

    def find(self, text: str) -> list[Finding]:
        """Return findings in order, none overlapping another."""
        ...
