"""What a scan finds."""

from collections.abc import Collection, Sequence
from typing import Literal, Protocol, get_args

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
KINDS: tuple[Kind, ...] = get_args(Kind)


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of personal data; never holds the piece itself."""

    kind: Kind
    start: int
    end: int
    """Characters [start, end) of the text."""
    score: float
    """0 to 1: how sure."""
    validator: str
    """What confirmed it: `luhn`, `mod97`, `stdnum.us.ssn`, ...; `pattern` when nothing else did."""


class Detector(Protocol):
    """Finds personal data in a text."""

    def find(self, text: str) -> list[Detection]:
        """Return findings in order, none overlapping another."""
        ...


class CombinedDetector:
    """All that several engines find."""

    def __init__(self, engines: Sequence[Detector]) -> None:
        self._engines = engines

    def find(self, text: str) -> list[Detection]:
        """Return findings in order, none overlapping another."""
        return disjoint([finding for engine in self._engines for finding in engine.find(text)])


def disjoint(findings: Collection[Detection]) -> list[Detection]:
    """Return, in order, the findings that stay when none may overlap another.

    The longest stays, then the surest, then the first kind.
    """
    taken: set[int] = set()
    kept = []
    for finding in sorted(findings, key=_rank):
        if finding.start not in taken and finding.end - 1 not in taken:
            taken.update(range(finding.start, finding.end))
            kept.append(finding)
    return sorted(kept, key=lambda finding: finding.start)


def _rank(finding: Detection) -> tuple[int, float, int, int]:
    length = finding.end - finding.start
    return -length, -finding.score, KINDS.index(finding.kind), finding.start
