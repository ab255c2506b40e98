"""The kinds of personal data, the patterns that describe them, and what a scan reports."""

from collections.abc import Callable, Collection
from typing import Literal, NamedTuple, Protocol, get_args

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
    "date_of_birth",
    "address",
]
"""`ssn` is the US one; `secret` is a key, a token or a password."""
KINDS: tuple[Kind, ...] = get_args(Kind)
DEFAULT_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR", "NL", "JP")
"""ISO 3166 codes of countries whose numbers are recognised as they are written at home."""


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one piece of personal data; never contains the piece itself."""

    kind: Kind
    start: int
    end: int
    """Characters [start, end) of the text."""
    score: float
    """Confidence, 0 to 1."""
    validator: str
    """The check that confirmed it: `luhn`, `mod97`, `stdnum.us.ssn`, ...; `pattern` if nothing else
    did."""


class Detector(Protocol):
    """Finds personal data in a text."""

    def find(self, text: str) -> list[Detection]:
        """Return detections in order of position, without overlaps."""
        ...


def disjoint(detections: Collection[Detection]) -> list[Detection]:
    """Remove overlaps and sort by position.

    Of overlapping detections the longest wins, then the one with the highest score, then the one
    whose kind comes first in `KINDS`.
    """

    def rank(detection: Detection) -> tuple[int, float, int, int]:
        length = detection.end - detection.start
        return -length, -detection.score, KINDS.index(detection.kind), detection.start

    covered: set[int] = set()
    winners = []
    for detection in sorted(detections, key=rank):
        # Nothing longer is left, so an overlap always includes the first or the last character.
        if detection.start not in covered and detection.end - 1 not in covered:
            covered.update(range(detection.start, detection.end))
            winners.append(detection)
    return sorted(winners, key=lambda detection: detection.start)


class PatternHit(NamedTuple):
    """Personal data in a normalised text: bytes [start, end)."""

    start: int
    end: int
    score: float
    """Confidence, 0 to 1."""
    validator: str


Check = Callable[[bytes, int, int], PatternHit | None]
"""Takes a normalised text and a candidate's bytes [start, end); returns the part of the candidate
that is personal data, or None."""


class DataPattern(NamedTuple):
    """A regular expression that proposes candidates, and the check that accepts them."""

    kind: Kind
    regex: str
    """The expression of re2 over normalised text. The candidate is the group that matches, if
    there is one; the rest is context. An unbounded repetition must not match what could begin
    another match."""
    check: Check
    key: str = ""
    """A cheaper regular expression that matches in every text in which `regex` does."""


def check_whole(validator: str, is_valid: Callable[[str], bool], score: float = 1.0) -> Check:
    """Make a check that applies `is_valid` to the whole candidate."""

    def check(text: bytes, start: int, end: int) -> PatternHit | None:
        if is_valid(text[start:end].decode("latin-1")) and stands_apart(text, start, end):
            return PatternHit(start, end, score, validator)
        return None

    return check


def stands_apart(text: bytes, start: int, end: int) -> bool:
    """Whether a number is not part of a longer one such as 0.1234, 1.2.3.4.5 or 12-3456-7890."""
    before = text[max(start - 2, 0) : start]
    behind = text[end : end + 2]
    continues_left = len(before) == 2 and before[1:] in (b".", b"-") and before[:1].isdigit()
    continues_right = len(behind) == 2 and behind[:1] in (b".", b"-") and behind[1:].isdigit()
    return not (continues_left or continues_right)
