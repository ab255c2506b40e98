"""A pattern proposes candidates; its check decides."""

from collections.abc import Callable
from typing import NamedTuple

from waltzrl.privacy.detection import Kind


class PatternHit(NamedTuple):
    """Personal data in plain text: bytes [start, end)."""

    start: int
    end: int
    score: float
    """0 to 1: how sure."""
    validator: str


Check = Callable[[bytes, int, int], PatternHit | None]
"""From plain text and a candidate's bytes [start, end) to what is personal data of it, if any."""


class DataPattern(NamedTuple):
    """What one kind of personal data looks like."""

    kind: Kind
    regex: str
    """For re2, over plain text. The candidate is group 1 where there is one: what stands before it
    is a hint. Whatever repeats without bound must not match what could begin another match."""
    check: Check
    key: str = ""
    """What every match holds, where that is cheaper to look for than the whole."""


def checked(validator: str, is_valid: Callable[[str], bool], score: float = 1.0) -> Check:
    """Make a check that asks `is_valid` about the whole candidate."""

    def check(text: bytes, start: int, end: int) -> PatternHit | None:
        if is_valid(text[start:end].decode("latin-1")) and stands_apart(text, start, end):
            return PatternHit(start, end, score, validator)
        return None

    return check


def stands_apart(text: bytes, start: int, end: int) -> bool:
    """Whether a number is not a piece of a longer one: 0.1234, 1.2.3.4.5, 12-3456-7890."""
    before = text[max(start - 2, 0) : start]
    behind = text[end : end + 2]
    goes_on_left = len(before) == 2 and before[1:] in (b".", b"-") and before[:1].isdigit()
    goes_on_right = len(behind) == 2 and behind[:1] in (b".", b"-") and behind[1:].isdigit()
    return not (goes_on_left or goes_on_right)
